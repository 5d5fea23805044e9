"""The ranking of settings, the bar of hopeless trials, and the cost of a tuning, on results made by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from repro.core.errors import OutputError
from repro.core.machine import Machine
from repro.record.folder.ledger import Attempt
from repro.record.folder.store import Record, RunFolder
from repro.record.hopeless import HopelessRule
from repro.record.log.schema import Bar
from repro.record.result.remarks import stated
from repro.record.result.results import Point, Result
from repro.record.tuning import Tuning, tuning_of, tuning_sha256
from repro.suite.contenders import tuning_suite
from repro.suite.model import Suite
from repro.suite.planning.plan import Plan, make_plan
from repro.worker.stop_rule import decide_hopeless

TUNE: dict[str, Any] = {"trials": 4, "search": "grid", "seeds": 2, "metric": "samples", "spaces": [
    {"origin": "a guess", "space": {"optimizer.lr": [0.1, 0.2, 0.3, 0.4]}}]}


def plan_of(tune: Mapping[str, Any] = TUNE, **trial: Any) -> Plan:
    suite = Suite.model_validate({
        "suite": "sample", "master_seed": 3, "tune": {**TUNE, **tune}, "matrix": {"processes": [1]},
        "trial": {"workload": "digits", "engine": "fake", "launcher": "inline", "batch": {"global": 64},
                  "optimizer": {"kind": "sgd", "lr": 1}, "device": "cpu", "evaluate_every": 1437,
                  "stop": {"metric": "top1", "target": 0.9, "max_epochs": 12}, **trial}})
    return make_plan(tuning_suite(suite), Machine("cpu", 0, 2))


def result(plan: Plan, lr: float, repeat: int, status: str = "ok", samples: int | None = None, best: float | None = 0.9,
           values: Sequence[float | None] = ()) -> Result:
    cell = next(cell for cell in plan.cells if cell.training.optimizer.options["lr"] == lr)
    curve = tuple(Point(samples=1472 * place, epochs=place, wall_seconds=place, train_seconds=place, value=value)
                  for place, value in enumerate(values, 1))
    return Result(trial_id=plan.trial(cell, repeat).trial_id, cell_id=cell.cell_id, repeat=repeat, attempt=1,
                  status=cast(Any, status), samples_to_target=samples, best=best, final=best, curve=curve)


def tuned(plan: Plan, results: Sequence[Result], attempts: Sequence[Attempt] = ()) -> Tuning:
    return tuning_of(Record(RunFolder(Path("run")), plan, cast(Any, None), tuple(attempts), tuple(results), None, None))


def ranks(tuning: Tuning) -> list[float]:
    return [item.values["optimizer.lr"] for item in tuning.contenders[0].ranked]


def test_a_setting_that_misses_once_comes_after_all_that_reach_the_target() -> None:
    plan = plan_of()
    found = tuned(plan, [
        result(plan, 0.1, 0, samples=500), result(plan, 0.1, 1, samples=900),
        result(plan, 0.2, 0, samples=100), result(plan, 0.2, 1, "missed", best=0.5),
        result(plan, 0.3, 0, samples=600), result(plan, 0.3, 1, samples=700),
        result(plan, 0.4, 0, "missed", best=0.8), result(plan, 0.4, 1, "missed", best=0.85)])
    assert ranks(found) == [0.3, 0.1, 0.4, 0.2]
    chosen = found.contenders[0].chosen
    assert chosen is not None and (chosen.figure, chosen.rank) == (650, 1)
    assert found.choice == [({"processes": 1}, {"optimizer.lr": 0.3})]


def test_a_crash_is_no_result_and_a_setting_without_any_comes_last() -> None:
    plan = plan_of()
    found = tuned(plan, [
        result(plan, 0.1, 0, "crashed", best=0.99), result(plan, 0.1, 1, "crashed", best=None),
        result(plan, 0.2, 0, "diverged", best=0.2), result(plan, 0.2, 1, "abandoned", best=0.3),
        result(plan, 0.3, 0, samples=600), result(plan, 0.3, 1, "crashed", best=None)])
    assert ranks(found)[:2] == [0.3, 0.2]
    assert found.contenders[0].ranked[0].figure is None, "one seed has no result"
    assert not found.complete and not found.contenders[0].ranked[-1].judged


def test_a_lower_quality_can_be_the_better_one() -> None:
    plan = plan_of(TUNE | {"metric": "accuracy", "seeds": 1}, workload="gpt-synthetic",
                   stop={"metric": "val_loss", "target": 0.1, "max_epochs": 12})
    found = tuned(plan, [result(plan, lr, 0, "missed", best=loss) for lr, loss in
                         ((0.1, 0.5), (0.2, 0.3), (0.3, 0.9), (0.4, 0.7))])
    assert ranks(found) == [0.2, 0.1, 0.4, 0.3]
    assert found.contenders[0].ranked[0].figure == 0.3, "a quality counts although the target was missed"


def test_equal_settings_keep_the_order_of_drawing_and_nothing_is_chosen_from_nothing() -> None:
    plan = plan_of(TUNE | {"seeds": 1})
    found = tuned(plan, [result(plan, lr, 0, samples=64) for lr in (0.1, 0.2, 0.3, 0.4)])
    assert [item.rank for item in found.contenders[0].settings] == [1, 2, 3, 4]
    with pytest.raises(OutputError, match="no trial could be judged, so nothing can be scored: 1: 4 crashed"):
        tuned(plan, [result(plan, lr, 0, "crashed", best=None) for lr in (0.1, 0.2, 0.3, 0.4)]).choice  # noqa: B018


def test_the_cost_counts_every_start_and_the_processes_that_it_held() -> None:
    plan = plan_of(TUNE | {"seeds": 1})
    one = result(plan, 0.1, 0, "abandoned")
    line = Attempt(trial_id=one.trial_id, cell_id=one.cell_id, repeat=0, attempt=1, started_ms=0, seconds=2.5,
                   status="crashed")
    lines = [line, line.model_copy(update={"attempt": 2, "status": "abandoned", "seconds": 1.5}),
             line.model_copy(update={"attempt": 3, "status": "started", "seconds": 9})]
    cost = tuned(plan, [one], lines).cost
    assert (cost.trials, cost.starts, cost.abandoned, cost.unknown) == (1, 3, 1, 1)
    assert cost.wall_seconds == cost.processor_seconds == 4.0


def test_the_hash_follows_the_results_and_not_their_texts() -> None:
    plan = plan_of(TUNE | {"seeds": 1})
    one = result(plan, 0.1, 0, samples=64)
    first = tuning_sha256(tuned(plan, [one]).record)
    assert tuning_sha256(tuned(plan, [one.model_copy(update={"reasons": stated("scrubbed")})]).record) == first
    assert tuning_sha256(tuned(plan, [one.model_copy(update={"samples_to_target": 65})]).record) != first


def rule_of() -> tuple[Plan, HopelessRule]:
    plan = plan_of(TUNE | {"seeds": 1, "hopeless": {"at": 0.25, "after": 2}})
    rule = HopelessRule.of(plan)
    assert rule is not None
    return plan, rule


def test_the_bar_is_the_median_of_earlier_trials_at_the_same_point() -> None:
    plan, rule = rule_of()
    trials = list(plan.trials())
    rates = [trial.training.optimizer.options["lr"] for trial in trials]
    earlier = [result(plan, rates[0], 0, "missed", values=[0.1, 0.2, 0.3, 0.4]),
               result(plan, rates[1], 0, "ok", values=[0.5, 0.9]),
               result(plan, rates[2], 0, "diverged", values=[0.1, 0.2, None])]
    assert rule.bar(trials[1], earlier[:1]) is None, "two have to end first"
    bar = rule.bar(trials[3], earlier)
    assert bar is not None
    assert bar.samples == 4320 == math.ceil(0.25 * trials[3].training.budget_steps * 64)
    assert bar.value == 0.3, "the median of 0.3, of 0.9 (ended early) and of the worst (diverged)"
    assert bar.of == tuple(item.trial_id for item in earlier)
    assert rule.bar(trials[2], [earlier[1], earlier[0], *earlier[2:]]) == rule.bar(trials[2], earlier[:2]), \
        "later trials and the order of reading have no effect"
    assert rule.bar(trials[3], [item.model_copy(update={"curve": ()}) for item in earlier]) is None, "nothing is worse"
    crashed = [item.model_copy(update={"status": "crashed"}) for item in earlier]
    assert rule.bar(trials[3], crashed) is None


def test_a_trial_is_judged_once_and_an_equal_one_goes_on() -> None:
    bar = Bar(samples=100, value=0.5, direction="higher", of=("a", "b"))
    assert decide_hopeless(None, "top1", 0.1, 50, 100) is None
    assert decide_hopeless(bar, "top1", 0.1, 0, 99) is None
    assert decide_hopeless(bar, "top1", 0.5, 99, 100) is None
    assert decide_hopeless(bar, "top1", 0.1, 100, 200) is None, "judged before, or resumed after that point"
    ending = decide_hopeless(bar, "top1", 0.1, 99, 130)
    assert ending is not None and ending.outcome == "abandoned"
    assert ending.reason == ("top1 0.1000 after 130 samples is worse than 0.5000, the median of 2 earlier trials of "
                             "its contender there")
    lower = bar.model_copy(update={"direction": "lower"})
    assert decide_hopeless(lower, "loss", 0.1, 99, 100) is None
    assert decide_hopeless(lower, "loss", 0.6, 99, 100) is not None
