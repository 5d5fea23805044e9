"""A board: each record is a row, only verified ones count, what compares stands below one heading; killed builds."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import psutil
import pytest

from repro.board.entry import Arm, Entry, Statement, grouped, without_copies
from repro.board.read import read_entry
from repro.bundle.contents import write_bundle
from repro.bundle.source import open_record
from repro.compare.runs.together import together
from repro.core.errors import ReproError, UsageError
from repro.core.numbers import significant
from repro.record.folder.index import seal
from repro.stats.interval import from_log
from repro.suite.model import Trial
from tests.in_process import called, succeeded
from tests.made_scores import SCORES, scores_course
from tests.records import SUITE, Course, make_record
from tests.waiting import LONG_SECONDS

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
    done = succeeded("board", records, "--out", out, "--title", "Ours")
    return out, done.output


def built(root: Path, *names: str) -> tuple[str, str]:
    """Build a board of `root`/in, with bundles of the gallery put there first; return its index and what was said."""
    (root / "in").mkdir(exist_ok=True)
    for name in names:
        shutil.copy(RECORDS / f"{name}.zip", root / "in")
    done = succeeded("board", root / "in", "--out", root / "out")
    return (root / "out/index.html").read_text(encoding="utf-8"), done.output


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
    (listed,) = re.findall(r'<select name="system">(.*?)</select>', page)
    assert "10 systems" in row(page, "others/mlperf") and "10 systems" not in listed, "a number of systems is no system"
    assert "AMD EPYC" in listed


def test_every_link_leads_to_a_page(site: tuple[Path, str]) -> None:
    page = (site[0] / "index.html").read_text(encoding="utf-8")
    links = {link.partition("#")[0] for link in re.findall(r'href="(pages/[^"]+)"', page)}
    assert len(links) == 6 and all((site[0] / link).is_file() for link in links)


def test_records_of_one_suite_stand_below_one_heading(site: tuple[Path, str]) -> None:
    page = (site[0] / "index.html").read_text(encoding="utf-8")
    groups = re.findall(r"<section id=\"g\d.*?</section>", page, re.DOTALL)
    together = [text for text in groups if "several-1.zip" in text]
    assert len(together) == 1 and "several-2.zip" in together[0] and "inconclusive.zip" not in together[0]


def test_a_second_build_gives_the_same_bytes(site: tuple[Path, str], records: Path) -> None:
    before = {path: path.read_bytes() for path in site[0].rglob("*.html")}
    succeeded("board", records, "--out", site[0], "--title", "Ours")
    assert {path: path.read_bytes() for path in site[0].rglob("*.html")} == before


def test_pages_of_records_that_are_gone_are_removed(tmp_path: Path) -> None:
    built(tmp_path, "several-1", "several-2")
    assert len(list((tmp_path / "out/pages").iterdir())) == 2
    (tmp_path / "in/several-2.zip").unlink()
    built(tmp_path)
    assert len(list((tmp_path / "out/pages").iterdir())) == 1


def test_a_folder_that_no_build_made_is_refused_and_left_as_it_is(records: Path, tmp_path: Path) -> None:
    mine = {"index.html": "mine", "pages/mine.html": "mine"}
    for name, text in mine.items():
        (tmp_path / "site" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "site" / name).write_text(text, encoding="utf-8")
    done = called("board", records, "--out", tmp_path / "site")
    assert isinstance(done.exception, UsageError) and done.exception.exit_code == 2
    assert "holds no site of `repro board`" in str(done.exception) and "empty folder with --out" in str(done.exception)
    found = {path.relative_to(tmp_path / "site").as_posix(): path.read_text(encoding="utf-8")
             for path in (tmp_path / "site").rglob("*") if path.is_file()}
    assert found == mine


def test_only_files_that_a_build_wrote_are_deleted_or_overwritten(records: Path, tmp_path: Path) -> None:
    folder, site = tmp_path / "records", tmp_path / "site"
    folder.mkdir()
    shutil.copy(records / "several-1.zip", folder)
    build = ["board", str(folder), "--out", str(site)]
    site.mkdir()  # an empty folder is taken
    succeeded(*build)
    for name in ("pages/mine.html", "notes.txt"):
        (site / name).write_text("mine", encoding="utf-8")
    (page,) = (site / "pages").glob("several*")
    (folder / "several-1.zip").rename(folder / "other.zip")
    succeeded(*build)
    assert not page.exists() and (site / "notes.txt").exists()
    assert (site / "pages/mine.html").exists()
    page.write_text("mine", encoding="utf-8")
    (folder / "other.zip").rename(folder / "several-1.zip")
    done = called(*build)
    assert "was not written by `repro board`" in str(done.exception) and page.read_text(encoding="utf-8") == "mine"


def test_a_build_that_was_interrupted_is_resumed(
    records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, site = tmp_path / "records", tmp_path / "site"
    folder.mkdir()
    shutil.copy(records / "several-1.zip", folder)
    build = ["board", str(folder), "--out", str(site)]
    with monkeypatch.context() as patched:
        patched.setattr("repro.board.entry.without_copies", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        assert called(*build).exit_code != 0
    assert len(list((site / "pages").iterdir())) == 1 and not (site / "index.html").exists()
    succeeded(*build)


def test_a_list_of_files_that_leads_out_of_the_site_is_refused(records: Path, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "mine.html").write_text("mine", encoding="utf-8")
    (tmp_path / "site/board.json").write_text('{"schema": 1, "files": ["pages/../../mine.html"]}', encoding="utf-8")
    done = called("board", records, "--out", tmp_path / "site")
    assert isinstance(done.exception, UsageError) and (tmp_path / "mine.html").exists()


def test_a_folder_without_records_is_refused_in_one_line(tmp_path: Path) -> None:
    done = called("board", tmp_path)
    assert done.exit_code != 0 and "holds no bundle (.zip), run folder or published results" in str(done.exception)
    assert called("board", tmp_path / "none").exit_code == 2


def entry(place: str, day: str, seconds: float, **more: object) -> Entry:
    fields = {"place": place, "sha256": place, "identity": place, "started_ms": int(day.replace("-", "")),
              "kind": "run", "standing": "verified", "why": "", "suite": "s",
              "title": "t", "question": "q", "goal": "", "system": "box", "engines": ("ddp",), "version": "1",
              "day": day,
              "origin": "measured", "arms": (Arm(label="ddp", median=seconds, reached=5, trials=5),), "answers": ()}
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


def remade(source: Path, out: Path, **environment: object) -> None:
    """Pack a record again with another environment, as its machine would have."""
    with open_record(source) as folder:
        path = folder / "environment.json"
        path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | environment), encoding="utf-8")
        write_bundle(folder, out)


def test_the_first_screen_has_an_answer_for_each_question(site: tuple[Path, str]) -> None:
    page = (site[0] / "index.html").read_text(encoding="utf-8")
    answers = [re.sub(r"<[^>]+>", "", text) for text in re.findall(r"<li data-of.*?</li>", page, re.DOTALL)]
    assert len(answers) == 3  # the unreadable one has none
    assert page.index('class="answers"') < page.index("<form")
    (several,) = [text for text in answers if "two runs" in text]
    assert "fsdp takes" in several and "as long as ddp" in several and several.count("slower") == 2
    assert "2 verified records of 3: 2 slower" in several
    assert any("Undecided between nesterov True and nesterov False: a ratio of 0." in text for text in answers)


def test_the_easiest_of_several_tasks_is_no_least_median(tmp_path: Path) -> None:
    make_record(tmp_path / "in/scores", SCORES, scores_course)
    made, _ = read_entry(tmp_path / "in/scores", tmp_path / "in", lambda *_: "")
    assert made.arms and made.best is None
    page, _ = built(tmp_path)
    assert "least median" not in re.findall(r"<li data-of.*?</li>", page, re.DOTALL)[0]


def test_the_first_screen_labels_figures_that_were_not_measured(tmp_path: Path) -> None:
    make_record(tmp_path / "in/simulated", SUITE.replace("engine: [ddp, {kind: deepspeed, stage: 1}]",
                                                         "engine: [fake, {kind: fake, step_seconds: 0.02}]")
                .partition("baseline:")[0])
    page, _ = built(tmp_path)
    (first,) = re.findall(r"<li data-of.*?</li>", page, re.DOTALL)
    assert "1 record, none verified, simulated" in " ".join(re.sub(r"<[^>]+>", "", first).split())


def test_the_claims_of_a_contest_stand_as_on_its_page(tmp_path: Path) -> None:
    shutil.copytree(RECORDS / "speedrun-2026-06-11", tmp_path / "in/contest")
    page, _ = built(tmp_path)
    text = " ".join(re.sub(r"<[^>]+>", "", row(page, "contest")).split())
    (link,) = set(re.findall(r'href="(pages/contest-[^"#]+\.html#c-[^"]+)"', page))
    name, _, anchor = link.partition("#")
    own = (tmp_path / "out" / name).read_text(encoding="utf-8")
    assert f'id="{anchor}"' in own
    for shown in ("this_pr", "baseline_pr299", "0.9594", "0.9571", "0.9616", "faster", "supported", "3.27893"):
        assert shown in text and shown in own
    assert "13 against 10 runs" in text and "target 3.28" in text and "not verified" in text


def test_records_of_two_versions_and_systems_can_be_told_apart(tmp_path: Path) -> None:
    remade(RECORDS / "several-1.zip", tmp_path / "in/old.zip", repro_version="0.1.9", cpu="Other CPU")
    page, said = built(tmp_path, "several-2")
    assert "2 records, 2 verified" in said
    assert re.findall(r'data-version="([^"]+)"', page) == ["0.1.9", "0.2.0"]
    assert len(set(re.findall(r'data-system="([^"]+)"', page))) == 2
    assert page.count('<div class="progress">') == 2 and "of 2 systems" in page


def test_declared_main_effects_are_the_answers_of_a_factorial_record(tmp_path: Path) -> None:
    page, _ = built(tmp_path, "factorial")
    assert "contrast declared" not in page.casefold()
    (first,) = re.findall(r"<li data-of.*?</li>", page, re.DOTALL)
    both = " ".join(re.sub(r"<[^>]+>", "", row(page, "factorial.zip")).split())
    (own,) = (tmp_path / "out/pages").iterdir()
    own_text = " ".join(re.sub(r"<[^>]+>", "", own.read_text(encoding="utf-8")).split())
    assert "fsdp takes 4.36&nbsp;&times; (4.10 to 4.64) as long as ddp slower" in both
    assert "fsdp takes 4.36&nbsp;&times; as long as ddp" in own_text
    assert "Undecided between batch 128 and batch 64: a ratio of 0." in both and "inconclusive" in both
    assert "Undecided between batch 128 and batch 64" in own_text and "averaged over both levels" in both
    assert "4.36" in first and "main effect, averaged over both levels" in first and "and 1 more below" in first


def test_one_record_is_singular(tmp_path: Path) -> None:
    assert built(tmp_path, "several-1")[1].rstrip().endswith(": 1 record, 1 verified")


@pytest.mark.parametrize(("runs", "against", "shown"), [(1, 0, "1 run"), (2, 0, "2 runs"), (1, 1, "1 against 1 run"),
                                                         (1, 3, "1 against 3 runs"), (3, 1, "3 against 1 run")])
def test_the_runs_of_published_results_are_counted_in_words(runs: int, against: int, shown: str) -> None:
    claim = Statement(about="a", subject="s", runs=runs, against_runs=against, seconds=1.0, anchor="c", ratio=0.9,
                      against="other", quality="supported")
    (group,) = grouped([entry("p", "2026-01-01", 1.0, kind="published", statements=(claim,), origin="published")])
    page = import_module("repro.reporters.board.page").render_board([group], "Ours")
    assert f"; {shown}<" in row(page, "p")


@pytest.mark.slow
def test_the_headline_of_three_submitted_records_is_their_mean_without_a_verdict(tmp_path: Path) -> None:
    def course(number: int) -> Callable[[Trial], Course]:
        def made(trial: Trial) -> Course:
            slow = (1.1 + 0.05 * number) * (1 + 0.01 * (trial.repeat % 4))
            return Course(step_seconds=0.01 * (slow if trial.choices.engine.kind == "deepspeed" else 1))

        return made

    for number in (1, 2, 3):
        text = SUITE.replace("seeds: 6\n", f"seeds: 6\nmaster_seed: {number}\n")
        record = make_record(tmp_path / f"run{number}", text, course(number))
        seal(record.folder)
        (tmp_path / "in").mkdir(exist_ok=True)
        succeeded("bundle", tmp_path / f"run{number}", "-o", tmp_path / f"in/{number}.zip")
    page, _ = built(tmp_path)
    texts = [" ".join(re.sub(r"<[^>]+>", " ", part).split()) for part in re.findall(r"<li.*?</li>", page, re.DOTALL)]
    assert "on average no verdict, 3 submitted records" in texts[0]
    roots = [tmp_path / f"run{number}" for number in (1, 2, 3)]
    wanted = next(item for item in together(roots).contrasts if "2 processes against ddp, 2" in item.label).effects
    assert wanted is not None and wanted.prediction is not None
    assert significant(from_log(wanted.mean), 3) in texts[0]
    assert "random effects over 3 submitted records" in page and "another record:" in page
    shutil.copy(tmp_path / "in/1.zip", tmp_path / "in/again.zip")
    (tmp_path / "in/3.zip").unlink()
    page, _ = built(tmp_path)
    assert "submitted records" not in page, "a copy is no record"


# ---- damaged records, and builds that were killed


def rewritten(out: Path, ending: str, change: tuple[str, str]) -> Path:
    """Copy a bundle with a pattern replaced in the files whose names end so."""
    with zipfile.ZipFile(RECORDS / "several-1.zip") as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            text = old.read(name)
            new.writestr(name, re.sub(change[0].encode(), change[1].encode(), text) if name.endswith(ending) else text)
    return out


ABSURD = {
    "far": ("environment.json", (r'"started_ms":\s*\d+', f'"started_ms": {10**18}')),
    "early": ("environment.json", (r'"started_ms":\s*\d+', f'"started_ms": {-10**18}')),
    "ledger": ("ledger.jsonl", (r'"started_ms":\s*[\d.]+', '"started_ms": 1e18')),
    "tiny": ("/result.json", (r'"tta_wall":\s*[\d.]+', '"tta_wall": 5e-324')),
    "small": ("/result.json", (r'"tta_wall":\s*[\d.]+', '"tta_wall": 1e-307')),
}


@pytest.mark.parametrize("name", ABSURD)
def test_absurd_times_are_refused_in_one_line_by_every_verb(name: str, tmp_path: Path) -> None:
    bundle = rewritten(tmp_path / f"{name}.zip", *ABSURD[name])
    for words in (("report", str(bundle), "--out", str(tmp_path / "out")), ("compare", str(bundle))):
        done = called(*words)
        assert isinstance(done.exception, ReproError), (words, done.exception)
        assert "\n" not in str(done.exception)
    done = called("verify", bundle)
    assert done.exit_code == 3 or isinstance(done.exception, ReproError), done.exception


def test_a_damaged_bundle_is_a_row_and_the_others_are_built(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name, change in ABSURD.items():
        rewritten(tmp_path / f"in/{name}.zip", *change)
    page, said = built(tmp_path, "several-2")
    assert "6 records, 1 verified" in said
    assert all("b-modified" in row(page, f"{name}.zip") for name in ABSURD)


def test_any_failure_of_a_modified_bundle_is_its_row_and_that_of_another_is_not_hidden(tmp_path: Path) -> None:
    def broken(_: object) -> str:
        raise ZeroDivisionError

    tampered(RECORDS / "several-1.zip", tmp_path / "wrong.zip")
    found, text = read_entry(tmp_path / "wrong.zip", tmp_path, broken)
    assert (found.standing, text, found.origin) == ("modified", "", "") and "was modified" in found.why
    with pytest.raises(ZeroDivisionError):
        read_entry(RECORDS / "several-1.zip", RECORDS, broken)


STOPPED = """
import os, sys, time
from pathlib import Path
from repro.board import build

def wait(path, top, render):
    (Path(sys.argv[1]) / f"worker-{os.getpid()}").touch()
    time.sleep(600)

build.read_entry = wait
top = Path(sys.argv[2])
build.read_records(sorted(top.glob("several-*.zip")), top, Path(sys.argv[1]), None)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="prctl")
def test_the_workers_of_a_killed_build_end(tmp_path: Path) -> None:
    def until(done: Callable[[], bool]) -> None:
        late = time.monotonic() + LONG_SECONDS
        while not done() and time.monotonic() < late:
            time.sleep(0.05)
        assert done()

    with subprocess.Popen([sys.executable, "-c", STOPPED, str(tmp_path), str(RECORDS)]) as build:
        until(lambda: bool(list(tmp_path.glob("worker-*"))))
        build.kill()
    workers = [int(path.name.partition("-")[2]) for path in tmp_path.glob("worker-*")]
    until(lambda: not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
                          for pid in workers))
