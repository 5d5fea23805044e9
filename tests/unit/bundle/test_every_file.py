"""One byte in every file of a run and of a bundle; files added, removed, renamed, swapped, also under a new index."""

from __future__ import annotations

import json
import random
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from repro.bundle import source
from repro.bundle.contents import make_bundle
from repro.bundle.source import open_record
from repro.bundle.verify import verify
from repro.core.errors import OutputError
from repro.core.files import read_model, write_model
from repro.record.derive.derive import derive
from repro.record.folder import index
from repro.record.folder.store import RunFolder, read_plan
from repro.record.log.reading import read_log
from repro.record.result.reasons import LogDamaged
from repro.record.result.results import Result
from repro.seams.launching import LaunchResult, RankEnd
from tests.records import SUITE, make_record
from tests.unit.bundle.test_verify import edit, reseal, trial_of


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete run with every kind of file that one can have."""
    record = make_record(tmp_path_factory.mktemp("every") / "run", SUITE.replace("seeds: 6", "seeds: 2"))
    record.folder.append_incident("machine", "its load is 3 on 2 core(s)")
    (record.folder.root / "launchers.json").write_text('{"preload_seconds": 1.5}\n')
    (record.folder.parity / "a-trial").mkdir(parents=True)
    (record.folder.parity / "a-trial" / "trace0.json").write_text("{}\n")
    trial_of(record.folder.root).joinpath("system_1.txt").write_text("{}\n")
    index.seal(record.folder)
    return record.folder.root


@pytest.fixture(scope="module")
def packed(original: Path) -> Path:
    return make_bundle(original, original.parent / "x.zip", "CC0-1.0").path


def one_of_each(root: Path) -> list[str]:
    """A file of every kind: those at the top, those of one trial, one trace."""
    first = trial_of(root).name
    return [item.name for item in index.members(root) if "/" not in item.name or first in item.name
            or item.name.startswith("parity/")]


def flipped(raw: bytes, place: int) -> bytes:
    return raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1:]


def test_a_bit_in_any_file_of_a_run_is_seen_and_the_file_named(run: Path) -> None:
    names = one_of_each(run)
    assert {name.rpartition("/")[2] for name in names} >= {
        "plan.json", "suite.yaml", "environment.json", "launchers.json", "ledger.jsonl", "incidents.jsonl",
        "parity.json", "trial.json", "result.json", "result_1.txt", "system_1.txt", "rank0.log", "trace0.json"}
    for name in names:
        raw = (run / name).read_bytes()
        for place in (0, len(raw) // 2, len(raw) - 1):
            (run / name).write_bytes(flipped(raw, place))
            assert (name, "hash") in {(item.place, item.kind) for item in verify(run).problems}, (name, place)
        (run / name).unlink()
        assert (name, "missing") in {(item.place, item.kind) for item in verify(run).problems}, name
        (run / name).write_bytes(raw)
    assert verify(run).sound


def test_an_added_file_is_found_anywhere_in_the_record(run: Path) -> None:
    for name in ("parity/other.json", f"trials/{trial_of(run).name}/extra.txt", "trials/extra/x", "parity/a/b/c"):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text("x")
        assert [(name, "unlisted")] == [(item.place, item.kind) for item in verify(run).problems
                                        if item.kind == "unlisted"], name
        (run / name).unlink()
    (run / "trials" / "extra").rmdir()
    (run / "notes.txt").write_text("x")
    found = verify(run)
    assert found.sound and "not part of the record, not checked: notes.txt" in found.notes


@pytest.mark.slow
def test_a_bit_in_any_file_of_a_bundle_is_seen_and_the_file_named(packed: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(packed) as archive:
        files = {item.filename: archive.read(item) for item in archive.infolist()}
    first = next(name for name in files if name.endswith("result.json")).rpartition("/")[0]
    for name in [name for name in files if "/" not in name or name.startswith((first, "parity/"))]:
        if name != index.NAME:
            source.pack(tmp_path / "y.zip", {**files, name: flipped(files[name], len(files[name]) // 2)})
            assert name in {item.place for item in verify(tmp_path / "y.zip").problems}, name
        source.pack(tmp_path / "y.zip", {other: text for other, text in files.items() if other != name})
        assert name in {item.place for item in verify(tmp_path / "y.zip").problems}, name
    source.pack(tmp_path / "y.zip", {**files, index.NAME: flipped(files[index.NAME], 3)})
    assert not verify(tmp_path / "y.zip").sound


@pytest.mark.slow
def test_no_changed_byte_of_an_archive_changes_its_content(packed: Path, tmp_path: Path) -> None:
    """A bit of the zip itself: refused, or found, or one that does not reach any file (a date, an attribute)."""
    raw, rng = packed.read_bytes(), random.Random(5)
    with zipfile.ZipFile(packed) as archive:
        before = {item.filename: archive.read(item) for item in archive.infolist()}
    refused = unsound = 0
    for place in [*range(30), *(rng.randrange(len(raw)) for _ in range(20)), *range(len(raw) - 30, len(raw))]:
        (tmp_path / "y.zip").write_bytes(flipped(raw, place))
        try:
            if not verify(tmp_path / "y.zip").sound:
                unsound += 1
                continue
        except OutputError:
            refused += 1
            continue
        with open_record(tmp_path / "y.zip") as root:
            after = {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*")
                     if path.is_file()}
        assert after == before, place
    assert refused > 15


def test_a_bundle_is_the_same_bytes_twice_and_holds_no_absolute_path(original: Path, packed: Path) -> None:
    again = make_bundle(original, original.parent / "y.zip", "CC0-1.0")
    assert again.path.read_bytes() == packed.read_bytes()
    with zipfile.ZipFile(packed) as archive:
        for name in archive.namelist():
            for place in (str(original), str(original.parent), str(Path.home()) + "/", "/tmp/"):
                assert place.encode() not in archive.read(name), (name, place)
            assert not name.startswith("/") and ".." not in name


# ---- modified, with a new index


def kinds(run: Path) -> set[tuple[str, str]]:
    """(kind, place without its trial) of everything found."""
    return {(item.kind, item.place.rpartition("/")[2]) for item in verify(run).problems}


def test_a_renamed_trial_folder(run: Path) -> None:
    trial_of(run).rename(run / "trials" / "another")
    reseal(run)
    found = verify(run).problems
    assert ("trials/another", "belongs to no trial of the plan") in {(item.place, item.what) for item in found}
    assert ("ledger", "ledger.jsonl") in kinds(run), "the ledger says that it ended"


def test_two_swapped_trials(run: Path) -> None:
    one, other = trial_of(run, 0), trial_of(run, 1)
    one.rename(run / "aside")
    other.rename(one)
    (run / "aside").rename(other)
    reseal(run)
    found = [item for item in verify(run).problems if item.place.endswith("/trial.json")]
    assert [item.what for item in found] == ["describes another trial than the plan"] * 2


def test_two_trials_swapped_with_their_names_mended(run: Path) -> None:
    """The logs and figures of two cells change places; every id outside the logs is made to fit."""
    one, other = (next(path for path in sorted((run / "trials").iterdir()) if path.name.startswith(name)
                       and json.loads((path / "result.json").read_text())["repeat"] == 0)
                  for name in ("ddp-p1", "deepspeed-z1-p1"))
    texts = {name: [(path / name).read_text() for path in (one, other)] for name in ("result.json", "result_1.txt")}
    for name, (mine, its) in texts.items():
        (one / name).write_text(its)
        (other / name).write_text(mine)
    for path, text in zip((one, other), texts["result.json"], strict=True):
        edit(path / "result.json", **{key: json.loads(text)[key] for key in ("trial_id", "cell_id", "repeat")})
    reseal(run)
    found = [item.what for item in verify(run).problems if item.place.endswith("result_1.txt")]
    assert len(found) == 2 and all("is the log of another trial" in what for what in found)


@pytest.mark.parametrize("what", ["seed", "cell", "both-with-files", "digest", "margin", "rate", "skip"])
def test_a_modified_plan(run: Path, what: str) -> None:
    """Pruning what did not suit, with a new index and, in the hardest case, a ledger and folders to match."""
    plan = json.loads((run / "plan.json").read_text())
    if what in ("seed", "both-with-files"):
        gone = [pair for pair in plan["order"] if pair[1] == 1]
        plan["order"] = [pair for pair in plan["order"] if pair[1] != 1]
        assert len(gone) == 4
    if what == "both-with-files":
        lines = [line for line in (run / "ledger.jsonl").read_text().splitlines(keepends=True)
                 if json.loads(line)["repeat"] != 1]
        (run / "ledger.jsonl").write_text("".join(lines))
        for path in list((run / "trials").iterdir()):
            if json.loads((path / "trial.json").read_text())["repeat"] == 1:
                shutil.rmtree(path)
    if what == "cell":
        plan["cells"] = plan["cells"][:3]
        plan["order"] = [pair for pair in plan["order"] if pair[0] < 3]
    if what == "digest":
        plan["digest"] = "0" * 64
    if what == "margin":
        plan["suite"]["margin"] = 0.5
    if what == "rate":
        plan["cells"][0]["choices"]["optimizer"]["lr"] = 0.2
    if what == "skip":
        plan["order"] = plan["order"][:-1]
    (run / "plan.json").write_text(json.dumps(plan, indent=1) + "\n")
    reseal(run)
    assert ("plan", "plan.json") in kinds(run)


def test_a_start_struck_from_the_ledger(run: Path) -> None:
    """A second attempt whose first is denied; and the log of a first whose line is gone."""
    path = trial_of(run)
    (path / "result_1.txt").rename(path / "result_2.txt")
    edit(path / "result.json", attempt=2)
    lines = (run / "ledger.jsonl").read_text().splitlines(keepends=True)
    (run / "ledger.jsonl").write_text("".join(
        line.replace('"attempt": 1', '"attempt": 2') if path.name in line else line for line in lines))
    reseal(run)
    assert kinds(run) == {("ledger", "ledger.jsonl")}
    shutil.copy(path / "result_2.txt", path / "result_1.txt")
    reseal(run)
    assert kinds(run) == {("ledger", "ledger.jsonl"), ("ledger", "result_1.txt")}


def test_a_trial_moved_out_of_its_block_in_the_ledger(run: Path) -> None:
    """Its pair would count for no time any more: by its place, and by a date that every file agrees with."""
    name, path = trial_of(run).name, run / "ledger.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(sorted(lines, key=lambda line: name in line)))
    reseal(run)
    assert any("before which the plan has it" in item.what for item in verify(run).problems)
    dated = [json.loads(line) | ({"started_ms": 1.7e12} if line == lines[0] else {}) for line in lines]
    path.write_text("".join(f"{json.dumps(item)}\n" for item in dated))
    reseal(run)
    assert any("which started later" in item.what for item in verify(run).problems)


def test_a_complete_run_without_its_index_is_not_as_it_was(run: Path) -> None:
    (run / index.NAME).unlink()
    assert kinds(run) == {("missing", index.NAME)}


def relogged(log: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change every event of a log."""
    events = [json.loads(line.partition(" ")[2]) for line in log.read_text().splitlines()]
    for event in events:
        change(event)
    log.write_text("".join(f":::MLLOG {json.dumps(event)}\n" for event in events))


def test_a_log_whose_durations_were_halved(run: Path) -> None:
    """With the result and the ledger changed to match: the wall clock of each event tells."""
    folder, path = RunFolder(run), trial_of(run)
    trial = next(item for item in read_plan(folder.plan).trials() if item.trial_id == path.name)

    def halve(event: dict[str, Any]) -> None:
        event["metadata"]["mono_ns"] = 1_000_000_000 + (event["metadata"]["mono_ns"] - 1_000_000_000) // 2

    relogged(path / "result_1.txt", halve)
    outcome = LaunchResult((RankEnd(0, 0),), 9.0)
    write_model(path / "result.json", derive(trial, 1, read_log(path / "result_1.txt"), outcome))
    reseal(run)
    assert ("result", "result_1.txt") in kinds(run)


@pytest.mark.parametrize(("field", "value"), [("seconds", 0.01), ("started_ms", 1.5e12), ("started_ms", 1.7e12), (
    "reasons", [{"kind": "stated", "text": "2.0 times faster than ddp"}])])
def test_a_ledger_that_contradicts_a_log(run: Path, field: str, value: Any) -> None:
    lines = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
    (run / "ledger.jsonl").write_text("".join(f"{json.dumps(line | {field: value})}\n" for line in lines))
    reseal(run)
    assert kinds(run) == {("ledger", "ledger.jsonl")}


# ---- unmodified: failures are marked as such


@pytest.mark.parametrize("how", ["hung", "timed_out", "lost", "crashed"])
def test_a_failure_is_as_it_was(run: Path, how: str) -> None:
    """A trial that hung, ran out of time, crashed with half a line, or lost its log is a record, not an alteration."""
    folder, path = RunFolder(run), trial_of(run)
    stored, log = read_model(path / "result.json", Result), path / "result_1.txt"
    trial = next(item for item in read_plan(folder.plan).trials() if item.trial_id == path.name)
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:9]) + (lines[9][:40] + "\n" if how == "crashed" else ""))
    outcome = {"hung": LaunchResult((RankEnd(1, -9, "stuck in a barrier"),), 9.0, hung=True),
               "timed_out": LaunchResult((), 9.0, timed_out=True),
               "crashed": LaunchResult((RankEnd(0, -9),), 9.0)}.get(how)
    result = derive(trial, 1, read_log(log), outcome) if outcome else Result(
        trial_id=trial.trial_id, cell_id=trial.cell_id, repeat=trial.repeat, attempt=1, status="crashed",
        reasons=(LogDamaged(problem="incomplete"),))
    assert (result.status, stored.status) == ("crashed" if how == "lost" else how, "ok")
    write_model(path / "result.json", result)
    ledger = [json.loads(line) for line in folder.ledger.read_text().splitlines()]
    said = {"status": result.status, "seconds": trial.choices.timeout_seconds,
            "reasons": json.loads((path / "result.json").read_text())["reasons"]}
    folder.ledger.write_text("".join(f"{json.dumps(line | said if line['trial_id'] == path.name else line)}\n"
                                     for line in ledger))
    reseal(run)
    assert verify(run).problems == []
