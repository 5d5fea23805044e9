"""A bundle that some other program unpacked is the record that was packed; a bundle is read by every verb."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from repro.bundle.contents import make_bundle
from repro.bundle.verify import verify
from repro.core.errors import UsageError
from repro.record.folder import index
from tests.in_process import called
from tests.records import Course, make_record


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, its bundle, and the bundle unpacked."""
    place = tmp_path_factory.mktemp("unpacked")
    index.seal(make_record(place / "run").folder)
    make_bundle(place / "run", place / "first.zip", "CC0-1.0")
    with zipfile.ZipFile(place / "first.zip") as source:
        source.extractall(place / "first")
    return place


@pytest.mark.slow
def test_an_unpacked_bundle_is_sound_and_gives_the_same_bundle(place: Path) -> None:
    assert verify(place / "first").problems == []
    assert verify(place / "first").identity == verify(place / "first.zip").identity
    make_bundle(place / "first", place / "again.zip", "CC0-1.0")
    assert (place / "again.zip").read_bytes() == (place / "first.zip").read_bytes()


def test_metadata_of_an_unpacked_bundle_are_compared_with_the_index(place: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(place / "first.zip") as source:
        source.extractall(tmp_path)
    metadata = tmp_path / "ro-crate-metadata.json"
    text = metadata.read_text()
    metadata.write_text(text.replace("CC0-1.0", "CC0-2.0"))
    assert [(item.place, item.kind) for item in verify(tmp_path).problems] == [(metadata.name, "hash")]
    metadata.unlink()
    assert [(item.place, item.kind) for item in verify(tmp_path).problems] == [(metadata.name, "missing")]


VERBS = [["compare", "{}", "--json"], ["audit", "{}", "--json"],
         ["plan", "{place}/run-suite.yaml", "--master-seed", "1", "--pilot", "{}", "--json"],
         ["report", "{}", "--to", "csv", "--out", "out-{}"], ["verify", "{}"], ["diff", "{}", "{}"]]


def ended(place: Path, arguments: list[str], name: str) -> tuple[int, str]:
    found = called(*[item.format(name, place=place) for item in arguments])
    return found.exit_code, found.output


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
def test_a_verb_reads_a_bundle_as_it_reads_a_run(place: Path, verb: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    before = (place / "first.zip").read_bytes()
    code, text = ended(place, verb, "first")
    assert code in (0, 3), text
    packed = ended(place, verb, "first.zip")
    assert packed[0] == code and "repro-bundle-" not in packed[1], packed[1]
    if "--json" in verb:
        numbers = [json.loads(item) for item in (text, packed[1])]
        for each in numbers:
            for key in ("runs", "order", "order_seed", "title"):
                each.pop(key, None)
            each.get("power", {}).pop("pilot", None)
        if verb[0] == "compare":
            assert numbers[1]["notes"].pop().startswith("first.zip: its figures are those that it states; repro verify")
        assert numbers[0] == numbers[1]
    assert (place / "first.zip").read_bytes() == before


def test_the_report_of_a_bundle_is_written_to_the_working_directory(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, text = ended(place, ["report", "{}", "--to", "csv"], str(place / "first.zip"))
    assert code == 0, text
    assert text and all(Path(name).is_relative_to("first-report") and Path(name).is_file() for name in text.split())


def test_several_runs_of_which_one_is_a_bundle_become_one_report(place: Path, tmp_path: Path) -> None:
    other = make_record(tmp_path / "other", course=lambda _: Course(step_seconds=0.001), only=2).folder.root
    code, text = ended(place, ["report", "{}", str(other), "--to", "csv", "--out", str(tmp_path / "out")],
                       str(place / "first.zip"))
    assert code == 0, text
    assert "  runs: first; other" in (tmp_path / "out/index.md").read_text()


def test_a_comparison_names_the_bundle_and_not_the_place_where_it_was_unpacked(place: Path) -> None:
    bundle = str(place / "first.zip")
    assert json.loads(ended(place, ["compare", "{}", "--json"], bundle)[1])["runs"] == [bundle]
    found = called("compare", bundle, bundle)
    assert isinstance(found.exception, UsageError)
    assert str(found.exception).startswith(f"{bundle}: given twice")


def test_a_file_that_is_no_bundle_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_bytes(b"PK")
    for verb in ("compare", "report", "audit"):
        found = called(verb, tmp_path / "x.zip").exception
        assert isinstance(found, UsageError) and "not a bundle" in str(found), verb


def test_nulls_of_a_bundle_are_kept_in_a_file_that_is_named(place: Path) -> None:
    arguments = ["calibrate", str(place / "run-suite.yaml"), "--from", str(place / "first.zip")]
    assert "name the file of the calibration with --to" in str(called(*arguments).exception)
