"""Going on with a run, in this process on invented figures: what runs again, what stands, what is refused and told."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from repro.bundle.verify import verify
from repro.cli.workflows import run as cli_run
from repro.core.errors import GuardError, OutputError, UsageError
from repro.core.files import read_model, write_model
from repro.core.machine import Machine
from repro.record import damaged as record_damaged
from repro.record import differences, environment, resume
from repro.record import index as record_index
from repro.record.environment import Environment
from repro.record.ledger import read_attempts
from repro.record.results import Result
from repro.record.store import Record, RunFolder, read_record
from repro.runner import attempt, preflight
from repro.runner.context import Options
from repro.runner.launching import Launchers
from repro.runner.machine_watch import ClockWatch
from repro.runner.run import Run, exit_code, prepare
from repro.runner.trials import Trials
from repro.seams.launching import LaunchResult, RankEnd
from repro.suite.file import read_suite
from repro.suite.model import Trial
from repro.suite.plan import Plan, make_plan
from tests.watcher import Silent

SUITE = """\
suite: invented
seeds: 2
{more}
trial:
  workload: digits
  engine: fake
  launcher: inline
  batch: {{global: 64}}
  optimizer: {{kind: sgd, lr: 0.1}}
  stop: {{metric: top1, target: 0.9, max_epochs: 40}}
  evaluate_every: 1437
  device: cpu
matrix:
  engine: [{{kind: fake, step_seconds: 0.010}}, {{kind: fake, step_seconds: 0.014}}]
"""
MACHINE = Machine(device="cpu", device_count=0, cores=2)


class ScriptedLaunchers(Launchers):
    """Launches as the script says, in order; "" is a launch as it is, and so is all that follows the script."""

    def __init__(self, script: list[str]) -> None:
        super().__init__()
        self.script = script

    def launch(self, trial: Trial, entry: str, folder: Path, payload: dict[str, Any]) -> LaunchResult:
        told = self.script.pop(0) if self.script else ""
        if told == "interrupt":
            raise KeyboardInterrupt
        if told == "crash":
            return LaunchResult((RankEnd(0, -9, "killed by SIGKILL", "last words"),), 0.1)
        if told == "hang":
            return LaunchResult((RankEnd(0, -9, "hung: no event for 5 s"),), 0.1, hung=True)
        outcome = super().launch(trial, entry, folder, payload)
        if told == "hole":
            log = folder / payload["log"]
            log.write_bytes(b"\0" * 500 + log.read_bytes()[500:])
        return outcome


class Scripted(Run):
    """A run with scripted launches."""

    def __init__(self, plan: Plan, folder: RunFolder, script: Sequence[str] = (), **options: bool) -> None:
        super().__init__(plan, folder, MACHINE, Silent(), Options(**options))
        self.launchers = ScriptedLaunchers(list(script))


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Scripted]:
    """A new run with this script."""
    monkeypatch.setattr(preflight, "before", lambda *_: [])
    monkeypatch.setattr(environment, "_git", lambda *_: None)  # a process each time

    def make(*script: str, more: str = "", **options: Any) -> Scripted:
        (tmp_path / "suite.yaml").write_text(SUITE.format(more=more))
        source = read_suite(str(tmp_path / "suite.yaml"), ())
        plan = make_plan(source.suite, MACHINE, source.problem)
        return Scripted(plan, prepare(plan, source.text, tmp_path / "run"), script, **options)

    return make


def go_on(run: Scripted, *script: str, **options: Any) -> Record:
    folder, plan = resume.reopen(run.folder.root)
    return Scripted(plan, folder, script, **options).execute()


def texts(found: Sequence[differences.Difference]) -> list[str]:
    return [item.text for item in found]


def ledger(record: Record) -> list[tuple[int, str]]:
    """(attempt, status) of every start, trial by trial in the order of the plan."""
    return [(item.attempt, item.status) for trial in record.plan.trials() for item in record.attempts
            if item.trial_id == trial.trial_id]


def results(folder: RunFolder) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in folder.trials.glob("*/result.json")}


# ---- what a failure leads to


def test_a_failure_stands_where_the_suite_says_nothing(begin: Callable[..., Scripted]) -> None:
    record = begin("", "crash", "hang").execute()
    assert ledger(record) == [(1, "ok"), (1, "crashed"), (1, "hung"), (1, "ok")]
    reasons = [result.reason for result in record.results]
    assert "rank 0: killed by SIGKILL; its log ends: last words" in reasons
    assert "rank 0: hung: no event for 5 s" in reasons
    assert record.incidents == ()


def test_a_failure_is_run_again_and_both_attempts_stand_in_the_ledger(begin: Callable[..., Scripted]) -> None:
    run = begin("", "crash", "hang", "", "hole", "", more="on_failure: rerun")
    record = run.execute()
    assert ledger(record) == [(1, "ok"), (1, "crashed"), (2, "hung"), (3, "ok"), (1, "crashed"), (2, "ok"), (1, "ok")]
    assert sorted(result.attempt for result in record.results) == [1, 1, 2, 3]
    assert [item.kind for item in record.incidents] == ["rerun"] * 3
    assert "attempt 1 crashed (rank 0: killed by SIGKILL; its log ends: last words); starting again" in \
        record.incidents[0].text
    assert "lines of its log are damaged, though every rank ended well" in record.incidents[2].text


def test_a_trial_is_not_run_again_for_ever(begin: Callable[..., Scripted]) -> None:
    record = begin(*["crash"] * 3, more="on_failure: rerun\nattempts: 2").execute()
    assert ledger(record) == [(1, "crashed"), (2, "crashed"), (1, "crashed"), (2, "ok"), (1, "ok"), (1, "ok")]
    again = go_on(begin_at(record))
    assert again.attempts == record.attempts, "its attempts are used up"
    assert ledger(go_on(begin_at(record), again=True))[:3] == [(1, "crashed"), (2, "crashed"), (3, "ok")]


def begin_at(record: Record) -> Scripted:
    return Scripted(record.plan, record.folder)


def test_a_failure_can_end_the_run_and_what_is_left_can_be_run_later(begin: Callable[..., Scripted]) -> None:
    run = begin("", "crash", more="on_failure: stop")
    record = run.execute()
    assert ledger(record) == [(1, "ok"), (1, "crashed")]
    assert [item.kind for item in record.incidents] == ["stopped"]
    assert exit_code(record.results, 4) == 1
    assert ledger(go_on(run)) == [(1, "ok"), (1, "crashed"), (1, "ok"), (1, "ok")]
    assert ledger(go_on(run, again=True)) == [(1, "ok"), (1, "crashed"), (2, "ok"), (1, "ok"), (1, "ok")]


# ---- what is missing runs, what is there stands


def test_exactly_what_is_missing_runs(begin: Callable[..., Scripted]) -> None:
    run = begin("", "", "interrupt")
    with pytest.raises(KeyboardInterrupt):
        run.execute()
    before = results(run.folder)
    assert len(before) == 2
    record = go_on(run)
    assert ledger(record) == [(1, "ok"), (1, "ok"), (1, "interrupted"), (2, "ok"), (1, "ok")]
    after = results(run.folder)
    assert {name: after[name] for name in before} == before
    assert [item.text for item in record.incidents] == ["resumed after 2 of 4 trials had ended"]
    assert go_on(run, "crash").attempts == record.attempts, "nothing was missing, nothing was launched"


def test_a_resumed_run_has_the_figures_of_an_undisturbed_one(begin: Callable[..., Scripted], tmp_path: Path) -> None:
    whole = begin()
    expected = whole.execute()
    (tmp_path / "run").rename(tmp_path / "whole")
    run = begin("", "interrupt")
    with pytest.raises(KeyboardInterrupt):
        run.execute()
    found = go_on(run)
    assert [item.model_copy(update={"attempt": 1}) for item in found.results] == list(expected.results)


def test_what_a_killed_writer_left_half_done_is_taken_away(begin: Callable[..., Scripted]) -> None:
    run = begin("", "interrupt")
    with pytest.raises(KeyboardInterrupt):
        run.execute()
    with run.folder.ledger.open("a") as stream:
        stream.write('{"trial_id": "half a li')
    aside = next(run.folder.trials.iterdir()) / ".result.json.tmp"
    aside.write_text("{")
    record = go_on(run)
    assert ledger(record) == [(1, "ok"), (1, "interrupted"), (2, "ok"), (1, "ok"), (1, "ok")]
    assert not aside.exists()


def test_a_number_that_a_log_has_is_not_given_again(begin: Callable[..., Scripted]) -> None:
    run = begin("interrupt")
    with pytest.raises(KeyboardInterrupt):
        run.execute()
    run.folder.ledger.unlink()
    trial = next(run.plan.trials())
    run.folder.log(trial.trial_id, 7).write_text("")
    assert ledger(go_on(run))[0] == (8, "ok")


# ---- another machine, another plan


@pytest.fixture
def half(begin: Callable[..., Scripted]) -> Scripted:
    """A run that was cut short after one trial."""
    run = begin("", "interrupt")
    with pytest.raises(KeyboardInterrupt):
        run.execute()
    return run


@pytest.mark.parametrize(("change", "said"), [
    ({"cpu": "Another"}, "cpu Another, now "),
    ({"cores": 999}, "cores 999, now "),
    ({"settings": {"OMP_NUM_THREADS": "77"}}, "setting OMP_NUM_THREADS 77, now "),
    ({"libraries": {"torch": "0.1"}}, "library torch 0.1, now "),
    ({"commit": "abc"}, "commit abc, now "),
    ({"limits": {"cpu.max": "100 100000"}}, "limit cpu.max 100 100000, now "),
    ({"packages": ("pluggy==0.1", "torch==0.1")}, "packages "),
])
def test_another_machine_is_refused_unless_forced(half: Scripted, change: dict[str, Any], said: str) -> None:
    there = read_model(half.folder.environment, Environment)
    merged = {key: {**getattr(there, key), **value} if isinstance(value, dict) else value
              for key, value in change.items()}
    write_model(half.folder.environment, there.model_copy(update=merged))
    before = half.folder.ledger.read_bytes()
    with pytest.raises(UsageError, match="cannot be resumed as the same run: ") as caught:
        go_on(half)
    assert said in str(caught.value) and "\n" not in str(caught.value)
    assert half.folder.ledger.read_bytes() == before
    record = go_on(half, force=True)
    assert record.missing() == []
    assert any(item.kind == "difference" and said in item.text for item in record.incidents)


@pytest.mark.parametrize(("then", "now", "said"), [
    ("a" * 64, "b" * 64, ["uncommitted changes aaaaaaaaaaaa, now bbbbbbbbbbbb"]),
    ("a" * 64, "a" * 64, []),
    (None, "b" * 64, []),  # a record from before it was kept; that there were none before `dirty` tells
    ("a" * 64, None, []),
])
def test_code_edited_between_two_starts_is_noticed_in_a_tree_that_was_dirty_before(
    then: str | None, now: str | None, said: list[str]
) -> None:
    here = environment.take(MACHINE, ()).model_copy(update={"dirty": True})
    assert texts(differences.differences(here.model_copy(update={"diff_sha256": then}),
                                         here.model_copy(update={"diff_sha256": now}))) == said


def test_packages_are_one_phrase_and_what_is_told_elsewhere_is_left_out() -> None:
    here = environment.take(MACHINE, ())
    then = here.model_copy(update={"packages": ("Repro_Harness==0.0", "torch==0.1", "a==1", "b_c==2")})
    now = here.model_copy(update={"packages": ("torch==0.2", "a==2", "B-c==2", "d==1")})
    assert texts(differences.differences(then, now)) == ["packages a 1, now 2; d unknown, now 1"]
    many = here.model_copy(update={"packages": tuple(f"p{number}==1" for number in range(9))})
    found = differences.differences(many, now.model_copy(update={"packages": ("a==2",)}))
    assert found[0].text.endswith(" (and 6 more)")


def test_limits_are_compared_where_both_records_say() -> None:
    here = environment.take(MACHINE, ())
    bare, boxed = (here.model_copy(update={"limits": limits}) for limits in ({}, {"cpu.max": "50000 100000"}))
    assert texts(differences.differences(bare, boxed)) == ["limit cpu.max unknown, now 50000 100000"]
    old = Environment.model_validate(here.model_dump(by_alias=True, exclude={"limits"}))
    assert differences.differences(old, boxed) == []


def test_two_fingerprints_taken_one_after_the_other_do_not_differ(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also from another folder, and once read back from the disk."""
    first = environment.take(MACHINE, ())
    write_model(tmp_path / "environment.json", first)
    monkeypatch.chdir(tmp_path)
    second = environment.take(MACHINE, ())
    assert first.packages
    assert differences.differences(first, second) == []
    assert differences.differences(read_model(tmp_path / "environment.json", Environment), second) == []


def test_load_and_time_are_no_differences(half: Scripted) -> None:
    there = read_model(half.folder.environment, Environment)
    write_model(half.folder.environment, there.model_copy(update={"load_1min": 99.0, "started_ms": 1, "packages": ()}))
    assert go_on(half).missing() == []


def test_a_plan_that_is_made_differently_now_is_noticed(half: Scripted) -> None:
    plan = half.plan
    assert resume.plan_differences(plan, MACHINE) == []
    for change, said in (({"digest": "0" * 64}, "suite digest 0000"), ({"method": "0.1"}, "method 0.1, now ")):
        (found,) = resume.plan_differences(plan.model_copy(update=change), MACHINE)
        assert found.text.startswith(said) and found.kind == "plan"


def altered_plan(half: Scripted, change: Callable[[dict[str, Any]], None]) -> Plan:
    """The plan of a run after somebody's hand, without the index that would tell."""
    data = json.loads(half.folder.plan.read_text())
    change(data)
    half.folder.plan.write_text(json.dumps(data))
    (half.folder.root / record_index.NAME).unlink(missing_ok=True)
    return resume.reopen(half.folder.root)[1]


@pytest.mark.parametrize(("change", "said"), [
    (lambda data: data["suite"].update(seeds=3),
     "plan.json: order has 4 trials, 0 of them not its suite's, whose seeds: 3 gives 6"),
    (lambda data: data["suite"].update(seeds=1),
     "plan.json: order has 4 trials, 2 of them not its suite's, whose seeds: 1 gives 2"),
    (lambda data: data["order"].pop(),
     "plan.json: order has 3 trials, 0 of them not its suite's, whose seeds: 2 gives 4"),
    (lambda data: data["order"].reverse(), "plan.json: order is not the one that its suite gives"),
    (lambda data: data["cells"].reverse(), "plan.json: order is not the one that its suite gives"),
])
def test_an_order_that_the_suite_does_not_give_is_refused(
    half: Scripted, change: Callable[[dict[str, Any]], None], said: str
) -> None:
    plan = altered_plan(half, change)
    assert texts(resume.plan_differences(plan, MACHINE)) == [said]
    with pytest.raises(UsageError, match=r"cannot be resumed as the same run: plan\.json: order"):
        resume.require_same(half.folder.root, resume.plan_differences(plan, MACHINE), force=False)


def test_an_order_of_no_cell_is_refused(half: Scripted) -> None:
    with pytest.raises(OutputError, match=r"plan.json: order: names a trial twice, or one that is of no cell"):
        altered_plan(half, lambda data: data["order"].append([7, 0]))


def test_a_reproduction_of_some_trials_can_go_on(half: Scripted) -> None:
    part = half.plan.model_copy(update={"order": half.plan.order[1:3], "kind": "reproduction"})
    assert resume.plan_differences(part, MACHINE) == []
    turned = part.model_copy(update={"order": part.order[::-1]})
    assert texts(resume.plan_differences(turned, MACHINE)) == ["plan.json: order is not the one that its suite gives"]
    more = part.model_copy(update={"order": (*part.order, (0, 9))})
    (found,) = resume.plan_differences(more, MACHINE)
    assert found.text.startswith("plan.json: order has 3 trials, 1 of them not its suite's")


# ---- the index of sums stands whatever happens


@pytest.mark.parametrize("where", ["mend", "record_set_aside", "complete_ledger"])
def test_a_start_that_fails_while_it_reopens_leaves_an_index(
    half: Scripted, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def damaged(*_: Any) -> None:
        raise OutputError("ledger.jsonl: damage was found")

    monkeypatch.setattr(RunFolder if where == "mend" else record_damaged, where, damaged)
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

    monkeypatch.setattr(record_damaged, where, damaged)
    with pytest.raises(OutputError, match="damage was found"):
        go_on(half)
    assert {path: path.read_bytes() for path in half.folder.root.rglob("*") if path.is_file()} == before


def test_an_index_that_cannot_be_taken_away_is_said_and_not_written_anew(half: Scripted) -> None:
    index = half.folder.root / record_index.NAME
    index.unlink()
    index.mkdir()
    with pytest.raises(OutputError, match=r"sha256sums\.txt: (not a regular file|cannot be removed: )"):
        go_on(half)
    assert index.is_dir()


@pytest.mark.parametrize(("text", "said"), [(None, "is no run folder"), ("{", "plan.json"), ("[]", "plan.json")])
def test_what_is_no_run_cannot_be_resumed(tmp_path: Path, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / "plan.json").write_text(text)
    with pytest.raises(OutputError, match=said):
        resume.reopen(tmp_path)


@pytest.mark.parametrize(("damage", "sealed", "said"), [
    (lambda folder: cut(folder / "result.json"), True, "result.json is truncated or damaged"),
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


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])


def edit(path: Path) -> None:
    path.write_text(path.read_text().replace('"tta_wall": ', '"tta_wall": 1'))


def test_killed_between_setting_aside_and_writing_it_down(half: Scripted) -> None:
    (name,) = results(half.folder)
    found = [record_damaged.Damaged(name, 1, "told before the end")]
    record_damaged.set_aside(half.folder, found)
    record = go_on(half)
    assert [(item.attempt, item.status, item.reason) for item in record.attempts if item.trial_id == name] == [
        (1, "lost", "result.json is missing; it had ended as ok"), (2, "ok", "")]


def test_an_attempt_that_was_lost_still_says_where_it_had_begun(half: Scripted) -> None:
    (name,) = results(half.folder)
    ended = next(item for item in read_attempts(half.folder.ledger) if item.trial_id == name)
    half.folder.append_attempt(ended.model_copy(update={"resumed_from": "step_8 of attempt 0"}))
    cut(half.folder.result(name))
    told = [(item.status, item.resumed_from) for item in go_on(half).attempts if item.trial_id == name]
    assert told == [("lost", "step_8 of attempt 0"), ("ok", "")]


def test_a_result_whose_end_nobody_wrote_down_is_counted(half: Scripted) -> None:
    lines = half.folder.ledger.read_text().splitlines(keepends=True)
    assert '"ok"' in lines[1]
    half.folder.ledger.write_text("".join([lines[0], *lines[2:]]))  # killed between the result and its line
    (half.folder.root / record_index.NAME).unlink()
    before = results(half.folder)
    record = go_on(half)
    assert ledger(record) == [(1, "ok"), (1, "interrupted"), (2, "ok"), (1, "ok"), (1, "ok")]
    assert {name: text for name, text in results(half.folder).items() if name in before} == before
    assert verify(half.folder.root).problems == []


@pytest.mark.parametrize("where", ["read_events", "write_model"])
def test_ctrl_c_after_a_trial_has_ended_does_not_cost_its_result(
    begin: Callable[..., Scripted], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    run = begin()
    real, calls = getattr(attempt, where), [0]

    def once(*arguments: Any) -> Any:
        found = real(*arguments)
        if where == "read_events" or isinstance(arguments[1], Result):
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


def test_checkpoints_that_a_killed_run_left_beside_a_result_are_taken_away(half: Scripted) -> None:
    record = read_record(half.folder.root)
    left = half.folder.checkpoints(record.results[0].trial_id) / "step_000000012"
    left.mkdir(parents=True)
    half.execute()
    assert not left.parent.exists()


def test_checkpoints_made_elsewhere_are_not_gone_on_from(half: Scripted) -> None:
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
    """There, elsewhere by force and cut short, there again: what differs from the first start is nothing now."""
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


def test_checkpoints_that_stay_where_nothing_differs(half: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_a_record_that_was_altered_is_not_sealed_anew(
    half: Scripted, hand: Callable[[Path, Path], object], said: str
) -> None:
    assert record_damaged.require_unmodified(half.folder, half.plan, force=False) == []
    (name,) = results(half.folder)
    hand(half.folder.root, half.folder.trial(name))
    said = said.format(trial=f"trials/{name}")
    with pytest.raises(UsageError, match=f"as the same run: .*{re.escape(said)}.*: --force") as caught:
        record_damaged.require_unmodified(half.folder, half.plan, force=False)
    assert "\n" not in str(caught.value)
    assert said in texts(record_damaged.require_unmodified(half.folder, half.plan, force=True))


def test_many_altered_files_are_one_line(half: Scripted) -> None:
    for number in range(9):
        (half.folder.trials / f"{number}\x1b.json").write_text("{}")
        (half.folder.trials / f"{number}.json").write_text("{}")
    with pytest.raises(UsageError, match=r"trials/0\.json was added since the run ended; .* \(and 5 more\)"):
        record_damaged.require_unmodified(half.folder, half.plan, force=False)


def test_what_is_run_again_anyway_is_not_refused_and_all_else_is(half: Scripted) -> None:
    (name,) = results(half.folder)
    cut(half.folder.result(name))
    cut(half.folder.log(name, 1))
    half.folder.trial_file(name).unlink()
    assert record_damaged.require_unmodified(half.folder, half.plan, force=False) == []
    found = record_damaged.find(half.folder, half.plan)
    record_damaged.set_aside(half.folder, found)  # killed here, the index still stands
    assert record_damaged.require_unmodified(half.folder, half.plan, force=False) == []
    append(half.folder.log(name, 2))
    assert texts(record_damaged.require_unmodified(half.folder, half.plan, force=True)) == [
        f"trials/{name}/result_2.txt was added since the run ended"]


def test_a_failed_trial_whose_result_was_set_aside_by_a_killed_start(begin: Callable[..., Scripted]) -> None:
    run = begin("", "crash")
    name = next(item.trial_id for item in run.execute().results if item.status == "crashed")
    cut(run.folder.result(name))
    record_damaged.set_aside(run.folder, record_damaged.find(run.folder, run.plan))
    assert record_damaged.require_unmodified(run.folder, run.plan, force=False) == []
    assert record_damaged.find(run.folder, run.plan) == []


def test_what_is_half_written_or_from_before_incidents_were_listed_is_not_refused(half: Scripted) -> None:
    (half.folder.trials / ".x.tmp").write_text("")
    (half.folder.root / ".plan.json.tmp").write_text("")
    half.folder.append_incident("machine", "a word")
    assert record_damaged.require_unmodified(half.folder, half.plan, force=False) == []


def test_the_command_refuses_a_complete_run_that_was_altered(
    begin: Callable[..., Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begin()
    run.execute()
    monkeypatch.setattr(cli_run, "detect", lambda: MACHINE)
    (run.folder.trial(next(iter(results(run.folder)))) / "added.json").write_text("{}")
    index = (run.folder.root / record_index.NAME).read_bytes()
    with pytest.raises(UsageError, match=r"added\.json was added since the run ended"):
        cli_run.resume_suite(run.folder.root, track=False)
    assert (run.folder.root / record_index.NAME).read_bytes() == index
    cli_run.resume_suite(run.folder.root, track=False, force=True)
    told = [(item.kind, item.text) for item in read_record(run.folder.root).incidents]
    assert len(told) == 1 and told[0][0] == "difference" and "added.json was added" in told[0][1]


def append(path: Path) -> None:
    with path.open("a") as stream:
        stream.write("\n")


def test_a_damaged_result_says_what_can_be_done(half: Scripted) -> None:
    cut(next(half.folder.trials.glob("*/result.json")))
    with pytest.raises(OutputError, match=r"result\.json: Invalid JSON.*`repro run --resume .*runs this trial again"):
        read_record(half.folder.root)


def test_hung_trials_damaged_logs_and_incidents_are_part_of_a_sound_record(begin: Callable[..., Scripted]) -> None:
    run = begin("hang", "hole", "crash", "")
    record = run.execute()
    assert ledger(record) == [(1, "hung"), (1, "crashed"), (1, "crashed"), (1, "ok")]
    run.folder.append_incident("machine", "a word")
    before = verify(run.folder.root)
    assert before.problems == [] and any("incidents.jsonl is not in the index" in text for text in before.notes)
    record_index.seal(run.folder)
    assert verify(run.folder.root).notes == []
    run.folder.append_incident("machine", "another")
    assert [item.text() for item in verify(run.folder.root).problems] == [
        "incidents.jsonl: was modified: its hash differs from the index"]


# ---- guards


def test_strict_refuses_a_machine_that_is_not_fit(
    begin: Callable[..., Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begin(strict=True)
    monkeypatch.setattr(preflight, "before", lambda *_: ["its load is 9 on 2 core(s)"])
    with pytest.raises(GuardError, match="--strict: this machine is not fit for the run: its load is 9"):
        run.execute()
    assert not run.folder.ledger.exists()
    run.options = Options()
    record = run.execute()
    assert [(item.kind, item.text) for item in record.incidents] == [("machine", "its load is 9 on 2 core(s)")]


@pytest.mark.parametrize("strict", [False, True])
def test_a_clock_that_is_set_is_told_and_strict_stops(begin: Callable[..., Scripted], strict: bool) -> None:
    run = begin(strict=strict)
    steps = iter([0.0, 0.0, 60.0, 60.0, 60.0])
    run.watch.clock = ClockWatch(lambda: time.monotonic() + next(steps))
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
