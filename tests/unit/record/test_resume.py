"""Resumption of a run, in this process on invented figures: repeated trials, kept results, refusals and messages."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from repro.bundle.verify import verify
from repro.core.errors import UsageError
from repro.core.files import read_model, write_model
from repro.record.environment import differences, environment
from repro.record.environment.environment import Environment
from repro.record.environment.nodes import Nodes
from repro.record.folder import index as record_index
from repro.record.folder import resume
from repro.record.folder.ledger import read_lines
from repro.record.folder.store import Record
from repro.runner.run import exit_code
from repro.suite.planning.plan import Plan
from tests.unit.record.scripted_runs import MACHINE, Begin, Scripted, begin, go_on, half, ledger, results, texts

__all__ = ["begin", "half"]  # fixtures


# ---- what a failure leads to


def test_a_failure_is_kept_by_default(begin: Begin) -> None:
    record = begin("", "crash", "hang").execute()
    assert ledger(record) == [(1, "ok"), (1, "crashed"), (1, "hung"), (1, "ok")]
    reasons = [result.reason for result in record.results]
    assert "rank 0: killed by SIGKILL; its log ends: last words" in reasons
    assert "rank 0: hung: no event for 5 s" in reasons
    assert record.incidents == ()


def test_a_failure_is_run_again_and_both_attempts_stand_in_the_ledger(begin: Begin) -> None:
    run = begin("", "crash", "hang", "", "hole", "", more="on_failure: rerun")
    record = run.execute()
    assert ledger(record) == [(1, "ok"), (1, "crashed"), (2, "hung"), (3, "ok"), (1, "crashed"), (2, "ok"), (1, "ok")]
    assert sorted(result.attempt for result in record.results) == [1, 1, 2, 3]
    assert [item.kind for item in record.incidents] == ["rerun"] * 3
    assert "attempt 1 crashed (rank 0: killed by SIGKILL; its log ends: last words); starting again" in \
        record.incidents[0].text
    assert "lines of its log are damaged, though every rank ended well" in record.incidents[2].text


def test_a_trial_is_not_run_again_for_ever(begin: Begin) -> None:
    record = begin(*["crash"] * 3, more="on_failure: rerun\nattempts: 2").execute()
    assert ledger(record) == [(1, "crashed"), (2, "crashed"), (1, "crashed"), (2, "ok"), (1, "ok"), (1, "ok")]
    again = go_on(begin_at(record))
    assert again.attempts == record.attempts, "its attempts are used up"
    assert ledger(go_on(begin_at(record), again=True))[:3] == [(1, "crashed"), (2, "crashed"), (3, "ok")]


def begin_at(record: Record) -> Scripted:
    return Scripted(record.plan, record.folder)


def test_a_failure_can_end_the_run_and_the_rest_can_run_later(begin: Begin) -> None:
    run = begin("", "crash", more="on_failure: stop")
    record = run.execute()
    assert ledger(record) == [(1, "ok"), (1, "crashed")]
    assert [item.kind for item in record.incidents] == ["stopped"]
    assert exit_code(record.results, 4) == 1
    assert ledger(go_on(run)) == [(1, "ok"), (1, "crashed"), (1, "ok"), (1, "ok")]
    assert ledger(go_on(run, again=True)) == [(1, "ok"), (1, "crashed"), (2, "ok"), (1, "ok"), (1, "ok")]


# ---- missing trials run, present results are kept


def test_exactly_the_missing_trials_run(begin: Begin) -> None:
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


def test_a_resumed_run_has_the_figures_of_an_undisturbed_one(begin: Begin, tmp_path: Path) -> None:
    whole = begin()
    expected = whole.execute()
    (tmp_path / "run").rename(tmp_path / "whole")
    run = begin("", "interrupt")
    with pytest.raises(KeyboardInterrupt):
        run.execute()
    found = go_on(run)
    assert [item.model_copy(update={"attempt": 1}) for item in found.results] == list(expected.results)


def test_incomplete_files_of_a_killed_writer_are_removed(half: Scripted) -> None:
    with half.folder.ledger.open("a") as stream:
        stream.write('{"trial_id": "half a li')
    aside = next(half.folder.trials.iterdir()) / ".result.json.tmp"
    aside.write_text("{")
    record = go_on(half)
    assert ledger(record) == [(1, "ok"), (1, "interrupted"), (2, "ok"), (1, "ok"), (1, "ok")]
    assert not aside.exists()


def test_a_number_that_a_log_has_is_not_given_again(begin: Begin) -> None:
    run = begin("interrupt")
    with pytest.raises(KeyboardInterrupt):
        run.execute()
    run.folder.ledger.unlink()
    trial = next(run.plan.trials())
    run.folder.log(trial.trial_id, 7).write_text("")
    assert ledger(go_on(run))[0] == (8, "ok")


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


def test_another_place_is_recorded_and_no_reason_to_refuse(half: Scripted) -> None:
    """As a requeued job that got another node: it began there, and goes on here."""
    (before,) = read_lines(half.folder.nodes, Nodes)
    assert before.here is not None
    elsewhere = before.model_copy(update={"here": before.here.model_copy(update={"host": "beta", "cores": "8-11"})})
    half.folder.nodes.write_text(elsewhere.model_dump_json() + "\n")
    assert elsewhere.here is not None
    there = elsewhere.here.name
    lines = half.folder.ledger.read_text().replace(json.dumps(before.here.name), json.dumps(there))
    half.folder.ledger.write_text(lines)
    record = go_on(half)
    assert record.missing() == []
    (moved,) = (item for item in record.incidents if item.kind == "moved")
    assert moved.text == f"node 0 is {before.here.name}, was {there}" and there.startswith("beta, cores 8-11")
    assert [item.names() for item in record.node_history] == [(there,), (before.here.name,)]
    assert {item.nodes for item in record.attempts} == {(there,), (before.here.name,)}
    assert all(item.nodes for item in record.attempts)


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


def test_packages_are_one_phrase_without_those_reported_elsewhere() -> None:
    here = environment.take(MACHINE, ())
    then = here.model_copy(update={"packages": ("Repro_Harness==0.0", "torch==0.1", "a==1", "b_c==2")})
    now = here.model_copy(update={"packages": ("torch==0.2", "a==2", "B-c==2", "d==1")})
    assert texts(differences.differences(then, now)) == ["packages a 1, now 2; d not installed, now 1"]
    many = here.model_copy(update={"packages": tuple(f"p{number}==1" for number in range(9))})
    found = differences.differences(many, now.model_copy(update={"packages": ("a==2",)}))
    assert found[0].text.endswith(" (and 6 more)")


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
    (found,) = resume.plan_differences(plan.model_copy(update={"digest": "0" * 64}), MACHINE)
    assert found.text.startswith("suite digest 0000") and found.kind == "plan"


WRONG_ORDER = "plan.json: order is not the one that its order_seed 20151102 gives: it differs from trial 1 on"


def altered_plan(half: Scripted, change: Callable[[dict[str, Any]], None]) -> Plan:
    """The plan of a run after a manual edit, without the index that would show it."""
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
    (lambda data: data["order"].reverse(), WRONG_ORDER),
    (lambda data: data["cells"].reverse(), WRONG_ORDER),
])
def test_an_order_that_the_suite_does_not_give_is_refused(
    half: Scripted, change: Callable[[dict[str, Any]], None], said: str
) -> None:
    plan = altered_plan(half, change)
    assert texts(resume.plan_differences(plan, MACHINE)) == [said]
    with pytest.raises(UsageError, match=r"cannot be resumed as the same run: plan\.json: order"):
        resume.require_same(half.folder.root, resume.plan_differences(plan, MACHINE), force=False)


def test_a_reproduction_of_some_trials_can_go_on(half: Scripted) -> None:
    part = half.plan.model_copy(update={"order": half.plan.order[1:3], "kind": "reproduction"})
    assert resume.plan_differences(part, MACHINE) == []
    turned = part.model_copy(update={"order": part.order[::-1]})
    assert texts(resume.plan_differences(turned, MACHINE)) == [WRONG_ORDER]
    more = part.model_copy(update={"order": (*part.order, (0, 9))})
    assert resume.plan_differences(more, MACHINE) == [], "pairs beyond those of the record"
    twice = part.model_copy(update={"order": (*part.order, part.order[0])})
    (found,) = resume.plan_differences(twice, MACHINE)
    assert found.text.startswith("plan.json: order has 3 trials, 0 of them not its suite's")


def test_a_clock_that_was_set_back_between_two_executions_is_recorded_and_no_modification(half: Scripted) -> None:
    """The starts of the first execution seem to be of the future, as after a clock was set back by a day."""
    day_ms = 24 * 3600 * 1e3
    for path, name in ((half.folder.ledger, "started_ms"), (half.folder.incidents, "at_ms")):
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
        path.write_text("".join(json.dumps({**line, name: line[name] + day_ms}) + "\n" for line in lines))
    record_index.seal(half.folder)
    record = go_on(half)
    (set_back,) = [item.text for item in record.incidents if item.kind == "clock"]
    assert re.fullmatch(r"the wall clock was set back by 8\d{4} s or more before the run was resumed", set_back)
    assert verify(half.folder.root).problems == []
    assert [item.trial_id for item in record.execution.attempts] == [item.trial_id for item in record.attempts]
    moments = [item.started_ms for item in record.execution.attempts]
    assert moments == sorted(moments)


def test_a_result_whose_line_was_not_written_took_as_long_as_its_run(half: Scripted) -> None:
    """The moment of its file is of a clock that was set back before the end."""
    trial = next(item for item in half.plan.trials() if half.folder.result(item.trial_id).is_file())
    lines = [line for line in half.folder.ledger.read_text().splitlines()
             if json.loads(line)["trial_id"] != trial.trial_id or json.loads(line)["status"] == "started"]
    half.folder.ledger.write_text("".join(f"{line}\n" for line in lines))
    os.utime(half.folder.result(trial.trial_id), (1.0, 1.0))
    record_index.seal(half.folder)
    record = go_on(half)
    result = next(item for item in record.results if item.trial_id == trial.trial_id)
    line = next(item for item in record.attempts if item.trial_id == trial.trial_id)
    assert result.run_seconds is not None and line.seconds == round(result.run_seconds, 3)
