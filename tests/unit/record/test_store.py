"""The run folder: new and empty, written completely or not, read with one line for each damaged file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from repro.core.errors import OutputError
from repro.core.files import write_json, write_text
from repro.record.folder.ledger import Attempt
from repro.record.folder.store import Record, RunFolder, read_record
from repro.record.result.remarks import stated
from tests.records import make_record

ROOT_MAY_ALL = os.geteuid() == 0


@pytest.fixture
def record(tmp_path: Path) -> Record:
    return make_record(tmp_path / "run", only=5)


# ---- a new folder


def test_a_new_folder_is_made_with_its_parents(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "a" / "b" / "run")
    assert folder.trials.is_dir()


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputError, match="exists and is not an empty folder"):
        RunFolder.create(tmp_path / "file")
    with pytest.raises(OutputError, match=r"cannot be written: Not a directory; give another --out"):
        RunFolder.create(tmp_path / "file" / "run")


def test_of_two_runs_that_begin_in_a_folder_at_once_one_gets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As tasks of a job array that have one --out: the other, refused by the lock, removed the folder of the first."""
    RunFolder.create(tmp_path / "run")
    with monkeypatch.context() as earlier:
        earlier.setattr(Path, "exists", lambda _: False)  # it has looked before
        with pytest.raises(OutputError, match="cannot be written: File exists; give another --out"):
            RunFolder.create(tmp_path / "run")


@pytest.mark.skipif(ROOT_MAY_ALL, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OutputError, match="cannot be written: Permission denied"):
        RunFolder.create(tmp_path / "run")


# ---- writing


def test_text_is_replaced_completely_without_other_files(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.json"
    write_text(path, "one")
    write_text(path, "two")
    assert path.read_text() == "two"
    assert list(path.parent.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.json"
    write_text(path, "old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match="cannot be written: No space left on device"):
        write_text(path, "new")
    assert path.read_text() == "old"


def test_a_text_that_utf8_has_not_leaves_the_old_text(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "new \ud800")
    assert path.read_text() == "old"


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputError, match=r"inner\.json: cannot be written: ") as caught:
        write_json(tmp_path / "file" / "inner.json", {})
    assert "\n" not in str(caught.value)


# ---- reading back


def test_a_record_of_a_run_that_is_not_finished(record: Record) -> None:
    assert (len(record.results), len(record.attempts)) == (5, 5)
    assert len(record.missing()) == 19
    assert {trial.trial_id for trial in record.missing()} | {item.trial_id for item in record.results} == {
        trial.trial_id for trial in record.plan.trials()}
    cell = record.plan.cells[0]
    assert record.cell(cell.cell_id) == cell
    assert [item.repeat for item in record.of_cell(record.results[0].cell_id)] == sorted(
        item.repeat for item in record.results if item.cell_id == record.results[0].cell_id)
    assert record.parity == {"needed": False, "why": "figures made by formula"}


def test_a_record_without_a_ledger_or_a_verdict_is_still_one(record: Record) -> None:
    record.folder.ledger.unlink()
    record.folder.parity_verdict.unlink()
    again = read_record(record.folder.root)
    assert (again.attempts, again.parity) == ((), None)
    assert again.results == record.results


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(OutputError, match=r"is not a run folder \(it has no plan\.json\)"):
            read_record(path)


DAMAGE = [
    ("plan.json", b"", "plan.json: Invalid JSON"), ("plan.json", b"{}", "plan.json: record format not stated"),
    ("plan.json", b'{"format": 1}', "plan.json: suite: Field required"),
    ("plan.json", b"\xff\xfe", "plan.json: Invalid JSON"), ("plan.json", b"[1]", "plan.json: "),
    ("environment.json", b'{"cores": "many"}', "environment.json: "),
    ("environment.json", None, "environment.json: cannot be read: No such file"),
    ("parity.json", b'{"needed": tr', "parity.json: Invalid JSON"),
    ("parity.json", b"[]", "parity.json: Input should be an object"),
    ("parity.json", b"\xff", "parity.json: Invalid JSON"),
    ("ledger.jsonl", b'{"trial_id": "x"}\n', "ledger.jsonl:1: not a ledger line: Field required"),
    ("ledger.jsonl", b"\xff\xfe\n", "ledger.jsonl:1: not a ledger line"),
]


@pytest.mark.parametrize(("name", "content", "problem"), DAMAGE)
def test_a_damaged_file_is_one_line(record: Record, name: str, content: bytes | None, problem: str) -> None:
    path = record.folder.root / name
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(OutputError) as caught:
        read_record(record.folder.root)
    assert str(caught.value).startswith(f"{record.folder.root}/{problem}")
    assert "\n" not in str(caught.value)


def test_a_cell_whose_plug_in_was_exchanged_is_one_line(record: Record) -> None:
    text = record.folder.plan.read_text().replace('"kind": "deepspeed"', '"kind": "megatron"')
    record.folder.plan.write_text(text)
    with pytest.raises(OutputError, match=r"plan\.json: .*'megatron'.* the record does not describe"):
        read_record(record.folder.root)


def test_the_ledger_only_grows(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path)
    attempts = [Attempt(trial_id="t", cell_id="c", repeat=0, attempt=n, started_ms=1.0, seconds=2.0, status="crashed",
                        reasons=stated('said "no"\nand left\u2028')) for n in (1, 2)]
    write_text(folder.environment, "{}")
    for attempt in attempts:
        folder.append_attempt(attempt)
    lines = folder.ledger.read_text().splitlines()
    assert [Attempt.model_validate(json.loads(line)) for line in lines] == attempts


def test_a_ledger_cut_off_in_its_last_line_keeps_the_others(record: Record) -> None:
    ledger = record.folder.ledger
    ledger.write_bytes(ledger.read_bytes()[:-20])
    assert read_record(record.folder.root).attempts == record.attempts[:-1]


def test_an_attempt_without_a_recorded_end_is_started(record: Record) -> None:
    first = record.attempts[0]
    record.folder.append_attempt(first.model_copy(update={"status": "started", "attempt": 2}))
    again = read_record(record.folder.root).attempts
    assert len(again) == len(record.attempts) + 1
    assert again[-1].status == "started"
    record.folder.append_attempt(first.model_copy(update={"status": "ok", "attempt": 2}))
    assert [item.status for item in read_record(record.folder.root).attempts][-1] == "ok"
