"""Runs that are resumed from damaged, modified or interrupted records."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from repro.bundle.verify import verify
from repro.cli.workflows import run as cli_run
from repro.core.errors import GuardError, OutputError, UsageError
from repro.core.files import read_model, write_model
from repro.record.environment.environment import Environment
from repro.record.folder import index as record_index
from repro.record.folder import resume
from repro.record.folder.ledger import read_attempts
from repro.record.folder.store import RunFolder, read_record
from repro.record.result.results import Result
from repro.runner import attempt, preflight
from repro.runner.context import Options
from repro.runner.trials import Trials
from repro.suite.file import read_suite
from repro.suite.planning.plan import Plan, make_plan
from tests.unit.record.scripted_runs import MACHINE, Begin, Scripted, begin, cut, go_on, half, ledger, results, texts

__all__ = ["begin", "half"]  # fixtures


# ---- the index of sums is kept in every case


@pytest.mark.parametrize("where", ["mend", "record_set_aside", "complete_ledger"])
def test_a_start_that_fails_while_it_reopens_leaves_an_index(
    half: Scripted, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def damaged(*_: Any) -> None:
        raise OutputError("ledger.jsonl: damage was found")

    monkeypatch.setattr(RunFolder if where == "mend" else resume, where, damaged)
    run = Scripted(half.plan, half.folder)
    with pytest.raises(OutputError, match="damage was found"):
        run.execute()
    assert run.has_written and (half.folder.root / record_index.NAME).is_file()
    assert not [item for item in verify(half.folder.root).problems if item.kind not in ("missing", "ledger")]


@pytest.mark.parametrize("where", ["find", "set_aside"])
@pytest.mark.parametrize("sealed", [True, False])
def test_a_start_that_is_refused_makes_no_index(
    half: Scripted, monkeypatch: pytest.MonkeyPatch, where: str, sealed: bool
) -> None:
    index = half.folder.root / record_index.NAME
    if not sealed:
        index.unlink()
    before = {path: path.read_bytes() for path in half.folder.root.rglob("*") if path.is_file()}

    def damaged(*_: Any) -> None:
        raise OutputError("damage was found")

    monkeypatch.setattr(resume, where, damaged)
    with pytest.raises(OutputError, match="damage was found"):
        go_on(half)
    assert {path: path.read_bytes() for path in half.folder.root.rglob("*") if path.is_file()} == before


def test_an_index_that_cannot_be_removed_is_reported_and_not_written_again(half: Scripted) -> None:
    index = half.folder.root / record_index.NAME
    index.unlink()
    index.mkdir()
    with pytest.raises(OutputError, match=r"sha256sums\.txt: (cannot be read: |cannot be removed: )"):
        go_on(half)
    assert index.is_dir()


@pytest.mark.parametrize(("text", "said"), [(None, "is not a run folder"), ("{", "plan.json"), ("[]", "plan.json")])
def test_other_folders_cannot_be_resumed(tmp_path: Path, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / "plan.json").write_text(text)
    with pytest.raises(OutputError, match=said):
        resume.reopen(tmp_path)


@pytest.mark.parametrize(("damage", "sealed", "said"), [
    pytest.param(lambda folder: cut(folder / "result.json"), True, "result.json is truncated or damaged",
                 marks=pytest.mark.slow),
    (lambda folder: cut(folder / "result.json"), False, "result.json is truncated or damaged"),
    (lambda folder: cut(folder / "result_1.txt"), True, "result_1.txt was modified since the run ended"),
    (lambda folder: cut(folder / "result_1.txt"), False, "result_1.txt: its log ends in the middle of a line"),
    (lambda folder: (folder / "result_1.txt").unlink(), True, "result_1.txt is missing"),
    (lambda folder: (folder / "result.json").unlink(), False, "result.json is missing"),
    (lambda folder: edit(folder / "result.json"), True, "result.json was modified since the run ended"),
])
def test_a_result_that_was_damaged_is_set_aside_and_its_trial_runs_again(
    half: Scripted, damage: Callable[[Path], object], sealed: bool, said: str
) -> None:
    """`sealed`: the run had ended by itself, and left an index; else it was killed."""
    if not sealed:
        (half.folder.root / record_index.NAME).unlink()
    (name,) = results(half.folder)
    damage(half.folder.trial(name))
    record = go_on(half)
    assert record.missing() == []
    ends = [(item.attempt, item.status) for item in record.attempts if item.trial_id == name]
    assert ends == [(1, "lost"), (2, "ok")]
    assert [item.text for item in record.incidents if item.kind == "lost"] == [
        f"attempt 1: {said}; it had ended as ok; the trial was run again"]
    assert len([item for item in record.attempts if item.trial_id != name and item.status == "ok"]) == 3
    assert verify(half.folder.root).problems == []
    assert go_on(half).attempts == record.attempts


def edit(path: Path) -> None:
    path.write_text(path.read_text().replace('"tta_wall": ', '"tta_wall": 1'))


def test_killed_between_setting_aside_and_writing_it_down(half: Scripted) -> None:
    (name,) = results(half.folder)
    found = [resume.Damaged(name, 1, "told before the end")]
    resume.set_aside(half.folder, found)
    record = go_on(half)
    assert [(item.attempt, item.status, item.reason) for item in record.attempts if item.trial_id == name] == [
        (1, "lost", "result.json is missing; it had ended as ok"), (2, "ok", "")]


def test_a_lost_attempt_still_states_its_checkpoint(half: Scripted) -> None:
    (name,) = results(half.folder)
    ended = next(item for item in read_attempts(half.folder.ledger) if item.trial_id == name)
    half.folder.append_attempt(ended.model_copy(update={"resumed_from": "step_8 of attempt 0"}))
    cut(half.folder.result(name))
    told = [(item.status, item.resumed_from) for item in go_on(half).attempts if item.trial_id == name]
    assert told == [("lost", "step_8 of attempt 0"), ("ok", "")]


def test_a_result_without_a_recorded_end_is_counted(half: Scripted) -> None:
    lines = half.folder.ledger.read_text().splitlines(keepends=True)
    assert '"ok"' in lines[1]
    half.folder.ledger.write_text("".join([lines[0], *lines[2:]]))  # killed between the result and its line
    (half.folder.root / record_index.NAME).unlink()
    before = results(half.folder)
    record = go_on(half)
    assert ledger(record) == [(1, "ok"), (1, "interrupted"), (2, "ok"), (1, "ok"), (1, "ok")]
    assert {name: text for name, text in results(half.folder).items() if name in before} == before
    assert verify(half.folder.root).problems == []


@pytest.mark.parametrize("where", ["read_log", "write_model"])
def test_ctrl_c_after_a_trial_has_ended_does_not_cost_its_result(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    run = begin()
    real, calls = getattr(attempt, where), [0]

    def once(*arguments: Any, **options: Any) -> Any:
        found = real(*arguments, **options)
        if where == "read_log" or isinstance(arguments[1], Result):
            calls[0] += 1
            if calls[0] == 1:
                raise KeyboardInterrupt
        return found

    monkeypatch.setattr(attempt, where, once)
    with pytest.raises(KeyboardInterrupt):
        run.execute()
    record = read_record(run.folder.root)
    assert [item.status for item in record.attempts] == [item.status for item in record.results] == ["ok"]
    assert not [item for item in verify(run.folder.root).problems if item.kind != "missing"]


def test_checkpoints_that_a_killed_run_left_next_to_a_result_are_removed(half: Scripted) -> None:
    record = read_record(half.folder.root)
    left = half.folder.checkpoints(record.results[0].trial_id) / "step_000000012"
    left.mkdir(parents=True)
    half.execute()
    assert not left.parent.exists()


def test_checkpoints_made_elsewhere_are_skipped(half: Scripted) -> None:
    """Half a trial's time on one machine and half on another is the time of neither."""
    waiting = read_record(half.folder.root).missing()[-1].trial_id
    left = half.folder.checkpoints(waiting) / "step_000000012"
    left.mkdir(parents=True)
    there = read_model(half.folder.environment, Environment)
    write_model(half.folder.environment, there.model_copy(update={"cpu": "Another"}))
    with pytest.raises(UsageError, match="cannot be resumed"):
        go_on(half)
    assert left.exists()
    record = go_on(half, force=True)
    assert not left.parent.exists() and record.missing() == []
    assert [(item.trial_id, item.text) for item in record.incidents if item.kind == "checkpoint"] == [
        (waiting, "step_000000012 may be of another machine or other code: the trial starts from the beginning")]


def test_nor_are_those_of_a_start_elsewhere_once_it_is_back(half: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    """There, elsewhere by force and interrupted, there again: no difference from the first start remains."""
    waiting = read_record(half.folder.root).missing()[-1].trial_id
    here = read_model(half.folder.environment, Environment)
    write_model(half.folder.environment, here.model_copy(update={"cpu": "Another"}))
    with monkeypatch.context() as cut_short:
        cut_short.setattr(Trials, "run", lambda *_: None)
        go_on(half, force=True)
    write_model(half.folder.environment, here)
    left = half.folder.checkpoints(waiting) / "step_000000012"
    left.mkdir(parents=True)
    record_index.seal(half.folder)
    record = go_on(half)
    assert not left.parent.exists() and record.missing() == []
    assert (waiting, "step_000000012 may be of another machine or other code: the trial starts from the beginning") in [
        (item.trial_id, item.text) for item in record.incidents if item.kind == "checkpoint"]


def test_checkpoints_are_kept_if_nothing_differs(half: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = read_record(half.folder.root).missing()[-1].trial_id
    left = half.folder.checkpoints(waiting) / "step_000000012"
    left.mkdir(parents=True)
    monkeypatch.setattr(Trials, "run", lambda *_: None)
    go_on(half)
    assert left.exists()


def test_a_run_that_is_refused_leaves_its_folder_as_it_is(half: Scripted) -> None:
    there = read_model(half.folder.environment, Environment)
    write_model(half.folder.environment, there.model_copy(update={"cpu": "Another"}))
    cut(next(half.folder.trials.glob("*/result.json")))
    before = {path: path.read_bytes() for path in half.folder.root.rglob("*") if path.is_file()}
    with pytest.raises(UsageError, match="cannot be resumed"):
        go_on(half)
    assert {path: path.read_bytes() for path in half.folder.root.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(("hand", "said"), [
    (lambda root, trial: append(root / "ledger.jsonl"), "ledger.jsonl was modified since the run ended"),
    (lambda root, trial: append(trial / "trial.json"), "{trial}/trial.json was modified since the run ended"),
    (lambda root, trial: (trial / "trial.json").unlink(), "{trial}/trial.json is missing"),
    (lambda root, trial: (trial / "added.json").write_text("{}"), "{trial}/added.json was added since the run ended"),
    (lambda root, trial: (root / "trials" / "other").write_text(""), "trials/other was added since the run ended"),
    (lambda root, trial: append(trial / "rank0.log"), "{trial}/rank0.log was modified since the run ended"),
])
def test_a_modified_record_gets_no_new_index(half: Scripted, hand: Callable[[Path, Path], object], said: str) -> None:
    assert resume.require_unmodified(half.folder, half.plan, force=False) == []
    (name,) = results(half.folder)
    hand(half.folder.root, half.folder.trial(name))
    said = said.format(trial=f"trials/{name}")
    with pytest.raises(UsageError, match=f"as the same run: .*{re.escape(said)}.*: --force") as caught:
        resume.require_unmodified(half.folder, half.plan, force=False)
    assert "\n" not in str(caught.value)
    assert said in texts(resume.require_unmodified(half.folder, half.plan, force=True))


def test_many_modified_files_are_one_line(half: Scripted) -> None:
    for number in range(9):
        (half.folder.trials / f"{number}\x1b.json").write_text("{}")
        (half.folder.trials / f"{number}.json").write_text("{}")
    with pytest.raises(UsageError, match=r"trials/0\.json was added since the run ended; .* \(and 5 more\)"):
        resume.require_unmodified(half.folder, half.plan, force=False)


def test_only_files_of_trials_that_run_again_are_not_refused(half: Scripted) -> None:
    (name,) = results(half.folder)
    cut(half.folder.result(name))
    cut(half.folder.log(name, 1))
    half.folder.trial_file(name).unlink()
    assert resume.require_unmodified(half.folder, half.plan, force=False) == []
    found = resume.find(half.folder, half.plan)
    resume.set_aside(half.folder, found)  # killed here, the index still exists
    assert resume.require_unmodified(half.folder, half.plan, force=False) == []
    append(half.folder.log(name, 2))
    assert texts(resume.require_unmodified(half.folder, half.plan, force=True)) == [
        f"trials/{name}/result_2.txt was added since the run ended"]


def test_a_lost_description_is_written_again(half: Scripted) -> None:
    (name,) = results(half.folder)
    half.folder.trial_file(name).unlink()
    with pytest.raises(UsageError, match=r"trial\.json is missing"):
        resume.require_unmodified(half.folder, half.plan, force=False)
    go_on(half)
    assert verify(half.folder.root).problems == []


def test_a_failed_trial_whose_result_was_set_aside_by_a_killed_start(begin: Begin) -> None:
    run = begin("", "crash")
    name = next(item.trial_id for item in run.execute().results if item.status == "crashed")
    cut(run.folder.result(name))
    resume.set_aside(run.folder, resume.find(run.folder, run.plan))
    assert resume.require_unmodified(run.folder, run.plan, force=False) == []
    assert resume.find(run.folder, run.plan) == []


def test_files_that_were_being_written_are_not_refused(half: Scripted) -> None:
    (half.folder.trials / ".x.tmp").write_text("")
    (half.folder.root / ".plan.json.tmp").write_text("")
    assert resume.require_unmodified(half.folder, half.plan, force=False) == []


def test_the_command_refuses_a_modified_complete_run(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    run = begin()
    run.execute()
    monkeypatch.setattr(cli_run, "detect", lambda: MACHINE)
    (run.folder.trial(next(iter(results(run.folder)))) / "added.json").write_text("{}")
    index = (run.folder.root / record_index.NAME).read_bytes()
    with pytest.raises(UsageError, match=r"added\.json was added since the run ended"):
        cli_run.resume_suite(run.folder.root, track=False)
    assert (run.folder.root / record_index.NAME).read_bytes() == index
    cli_run.resume_suite(run.folder.root, False, Options(force=True))
    told = [item.text for item in read_record(run.folder.root).incidents if item.kind == "difference"]
    assert len(told) == 1 and "added.json was added" in told[0]


def append(path: Path) -> None:
    with path.open("a") as stream:
        stream.write("\n")


def test_a_damaged_result_is_reported_with_the_fix(half: Scripted) -> None:
    cut(next(half.folder.trials.glob("*/result.json")))
    said = r"result\.json: Invalid JSON.*`repro run --resume .*runs this trial again"
    with pytest.raises(OutputError, match=said) as caught:
        read_record(half.folder.root)
    assert "\n" not in str(caught.value)


def test_hung_trials_damaged_logs_and_incidents_are_part_of_a_sound_record(begin: Begin) -> None:
    run = begin("hang", "hole", "crash", "")
    record = run.execute()
    assert ledger(record) == [(1, "hung"), (1, "crashed"), (1, "crashed"), (1, "ok")]
    run.folder.append_incident("machine", "a word")
    before = verify(run.folder.root)
    assert [item.text() for item in before.problems] == ["incidents.jsonl: is not in the index: it was added later"]
    record_index.seal(run.folder)
    assert verify(run.folder.root).notes == []
    run.folder.append_incident("machine", "another")
    assert [item.text() for item in verify(run.folder.root).problems] == [
        "incidents.jsonl: was modified: its hash differs from the index"]


# ---- preflight checks


def test_strict_refuses_a_machine_that_is_not_fit(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    run = begin(strict=True)
    monkeypatch.setattr(preflight, "before", lambda *_: ["its load is 9 on 2 core(s)"])
    with pytest.raises(GuardError, match="--strict: this machine is not fit for the run: its load is 9"):
        run.execute()
    assert not run.folder.ledger.exists()
    run.options = Options()
    record = run.execute()
    assert [item.text for item in record.incidents if item.kind == "machine"] == ["its load is 9 on 2 core(s)"]


@pytest.mark.parametrize("strict", [False, True])
def test_a_clock_that_is_set_is_reported_and_strict_stops(begin: Begin, strict: bool) -> None:
    run = begin(strict=strict)
    steps = iter([0.0, 0.0, 60.0, 60.0, 60.0])
    run.watch.wall = lambda: time.monotonic() + next(steps)
    run.watch.root = Path("/nowhere")  # the real machine may be throttled just now
    if strict:
        with pytest.raises(GuardError, match=r"--strict: the wall clock was set forward by 60\.0 s during "):
            run.execute()
        assert len(read_record(run.folder.root).results) == 2, "what has run is kept"
        return
    record = run.execute()
    trial = list(record.plan.trials())[1]
    assert [(item.kind, item.trial_id) for item in record.incidents] == [("clock", trial.trial_id)]


def test_new_fields_leave_the_names_of_old_records_alone() -> None:
    plan: Plan = make_plan(read_suite("quickstart", ()).suite, MACHINE)
    changed = make_plan(read_suite("quickstart", ("stall_seconds=20",)).suite, MACHINE, overridden=True)
    assert json.loads(plan.model_dump_json())["suite"]["on_failure"] == "continue"
    assert {cell.cell_id for cell in plan.cells}.isdisjoint(cell.cell_id for cell in changed.cells)
