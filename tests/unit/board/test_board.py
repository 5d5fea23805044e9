"""A board: every record is a row, only verified ones count, and what compares stands below one heading."""

from __future__ import annotations

import re
import shutil
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from repro.board.entry import Arm, Entry
from repro.board.groups import grouped, without_copies
from repro.cli.main import cli

RECORDS = Path(__file__).parents[3] / "docs/gallery/records"


def tampered(source: Path, out: Path) -> None:
    """Copy a bundle with another figure in one result."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(out, "w") as new:
        victim = next(name for name in old.namelist() if name.endswith("/result.json"))
        for name in old.namelist():
            text = old.read(name)
            new.writestr(name, re.sub(rb'"tta_wall":\s*\d', b'"tta_wall":0', text) if name == victim else text)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("records")
    for name in ("several-1", "several-2", "inconclusive"):
        shutil.copy(RECORDS / f"{name}.zip", folder)
    shutil.copytree(RECORDS / "mlperf-v4.0", folder / "others/mlperf")
    (folder / "copy").mkdir()
    shutil.copy(RECORDS / "inconclusive.zip", folder / "copy/it's mine.zip")
    tampered(RECORDS / "several-1.zip", folder / "wrong.zip")
    (folder / "cut.zip").write_bytes((RECORDS / "several-1.zip").read_bytes()[:9000])
    return folder


@pytest.fixture(scope="module")
def site(records: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("site") / "board"
    done = CliRunner().invoke(cli, ["board", str(records), "--out", str(out), "--title", "Ours"])
    assert done.exit_code == 0, done.output
    return out, done.output


def row(page: str, place: str) -> str:
    (found,) = [text for text in re.findall(r"<tr data-words.*?</tr>", page, re.DOTALL) if f">{place}<" in text]
    return found


def test_every_record_is_a_row_with_its_standing(site: tuple[Path, str]) -> None:
    out, said = site
    page = (out / "index.html").read_text(encoding="utf-8")
    assert "7 records, 3 verified" in said and "7 records: 3 verified, 2 modified or unreadable, 2 not verified" in page
    assert "cut.zip: " in said and "wrong.zip: " in said
    assert "b-verified" in row(page, "several-1.zip") and "b-modified" in row(page, "wrong.zip")
    assert "truncated" in row(page, "cut.zip") and "a copy of" in row(page, "inconclusive.zip")
    assert "repro verify &#39;copy/it&#39;&#34;&#39;&#34;&#39;s mine.zip&#39;" in page
    assert "published by others" in row(page, "others/mlperf")


def test_every_link_leads_to_a_page(site: tuple[Path, str]) -> None:
    page = (site[0] / "index.html").read_text(encoding="utf-8")
    links = {link.partition("#")[0] for link in re.findall(r'href="(pages/[^"]+)"', page)}
    assert len(links) == 6 and all((site[0] / link).is_file() for link in links)


def test_records_of_one_suite_stand_below_one_heading(site: tuple[Path, str]) -> None:
    page = (site[0] / "index.html").read_text(encoding="utf-8")
    groups = re.findall(r"<section id=\"g\d.*?</section>", page, re.DOTALL)
    together = [text for text in groups if "several-1.zip" in text]
    assert len(together) == 1 and "several-2.zip" in together[0] and "inconclusive.zip" not in together[0]


def test_a_second_build_reads_no_bundle_again_and_gives_the_same_bytes(
    site: tuple[Path, str], records: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = {path: path.read_bytes() for path in site[0].rglob("*.html")}
    stamps = {path: path.stat().st_mtime_ns for path in (site[0] / "pages").glob("several*")}
    done = CliRunner().invoke(cli, ["board", str(records), "--out", str(site[0]), "--title", "Ours"])
    assert done.exit_code == 0 and stamps
    assert {path: path.read_bytes() for path in site[0].rglob("*.html")} == before
    assert {path: path.stat().st_mtime_ns for path in (site[0] / "pages").glob("several*")} == stamps


def test_pages_of_records_that_are_gone_are_removed(records: Path, tmp_path: Path) -> None:
    folder = tmp_path / "records"
    folder.mkdir()
    for name in ("several-1", "several-2"):
        shutil.copy(records / f"{name}.zip", folder)
    for count in (2, 1):
        assert CliRunner().invoke(cli, ["board", str(folder), "--out", str(tmp_path / "site")]).exit_code == 0
        assert len(list((tmp_path / "site/pages").iterdir())) == count
        (folder / "several-2.zip").unlink(missing_ok=True)


def test_a_folder_without_records_is_refused_in_one_line(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["board", str(tmp_path)])
    assert done.exit_code != 0 and "holds no bundle (.zip), run folder or published results" in str(done.exception)
    assert CliRunner().invoke(cli, ["board", str(tmp_path / "none")]).exit_code == 2


def entry(place: str, day: str, seconds: float, **more: object) -> Entry:
    fields = {"place": place, "sha256": place, "identity": place, "started_ms": int(day.replace("-", "")),
              "kind": "run", "standing": "verified", "why": "", "suite": "s",
              "title": "t", "question": "q", "goal": "", "system": "box", "engines": ("ddp",), "version": "1",
              "day": day,
              "origin": "measured", "arms": (Arm(label="ddp", median=seconds, reached=5, trials=5),), "answer": None}
    return Entry.model_validate(fields | more)


def test_only_verified_records_that_were_better_are_in_the_progression() -> None:
    missed = (Arm(label="ddp", median=0.1, reached=4, trials=5),)
    (group,) = grouped([
        entry("c", "2026-03-01", 4.0), entry("a", "2026-01-01", 5.0), entry("b", "2026-02-01", 6.0),
        entry("d", "2026-04-01", 1.0, standing="modified"), entry("e", "2026-05-01", 1.0, system="other"),
        entry("f", "2026-06-01", 0.1, arms=missed),
    ])
    assert [step.entry.place for step in group.progression("box")] == ["a", "c"]
    assert [step.entry.place for step in group.progression("other")] == ["e"]


def test_a_copy_counts_once() -> None:
    first, second = without_copies([entry(name, "2026-01-01", 1.0, identity="x") for name in ("b", "a")])
    assert (first.place, first.standing) == ("a", "verified")
    assert (second.standing, second.why) == ("not verified", "a copy of a")
