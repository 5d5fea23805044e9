"""Results -> comparisons: the compared cells, and the permitted statements about them."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from repro.compare import Comparison, Summary, compare, summarize
from repro.core.machine import Machine
from repro.record.result.results import Result, Status
from repro.suite.planning.plan import Plan
from tests.made_cells import fine_bracket
from tests.plans import planned
from tests.records import SUITE, make_record

NAMES = {"ddp": "d", "deepspeed": "z", "fake": "f"}


def make_plan_of(folder: Path, old: str = "", new: str = "") -> Plan:
    assert old in SUITE
    return planned(folder, SUITE.replace(old, new, 1), machine=Machine("cpu", 0, 8))


def results(plan: Plan, seconds: Callable[[str, int, int], float | None], **changes: Any) -> list[Result]:
    """One result a trial; `seconds`(engine, processes, repeat) is its time to target, None: missed."""
    found = []
    for trial in plan.trials():
        value = seconds(trial.choices.engine.kind, trial.choices.processes, trial.repeat)
        status: Status = "missed" if value is None else "ok"
        hashes = {"init_weights": f"w{trial.repeat}", "data_order": f"o{trial.repeat}", "data": "d"}
        found.append(Result.model_validate({
            "trial_id": trial.trial_id, "cell_id": trial.cell_id, "repeat": trial.repeat, "attempt": 1,
            "status": status, "tta_wall": value, "tta_train": value and value / 2, "hashes": hashes,
            "bracket": value and fine_bracket(value), **changes}))
    return found


def spread(candidate: float) -> Callable[[str, int, int], float]:
    """DeepSpeed takes `candidate` times DDP's time, give or take a few per cent by seed."""
    return lambda engine, _, repeat: (1.0 if engine == "ddp" else candidate * (1 + 0.02 * (repeat % 3 - 1)))


def cells(plan: Plan) -> dict[str, str]:
    """cell_id -> d1, d2, z1, ...: engine and processes."""
    return {cell.cell_id: f"{NAMES[cell.choices.engine.kind]}{cell.choices.processes}" for cell in plan.cells}


def contrasts(plan: Plan) -> list[str]:
    short = cells(plan)
    return [f"{short[item.candidate]}/{short[item.baseline]}" for item in compare(plan, [])]


def primary(plan: Plan, found: list[Result]) -> Comparison:
    first = compare(plan, found)[0]
    assert first.primary
    return first


# ---- which cells are compared


def test_the_primary_comes_first_then_baselines_then_scaling_and_none_twice(tmp_path: Path) -> None:
    assert contrasts(make_plan_of(tmp_path)) == ["z2/d2", "z1/d1", "d2/d1", "z2/z1"]
    flags = [item.primary for item in compare(make_plan_of(tmp_path), [])]
    assert flags == [True, False, False, False]


@pytest.mark.parametrize(("baseline", "expected"), [
    ("{engine: ddp}", ["z1/d1", "z2/d2"]),  # the factors not named are the candidate's own
    ("{processes: 1}", ["d2/d1", "z2/z1"]),
    ("{engine: ddp, processes: 1}", ["d2/d1", "z1/d1", "z2/d1"]),
    ("{engine: {kind: deepspeed, stage: 1}}", ["d1/z1", "d2/z2"]),
    ("{}", ["d2/d1", "z1/d1", "z2/d1"]),  # none declared: the first cell
])
def test_the_baseline_is_the_cell_that_differs_in_nothing_else(
    tmp_path: Path, baseline: str, expected: list[str]
) -> None:
    text = SUITE.replace("baseline: {engine: ddp}\n", f"baseline: {baseline}\n")
    found = contrasts(planned(tmp_path, text[:text.index("primary:")], machine=Machine("cpu", 0, 8)))
    assert sorted(found) == sorted({*expected, "d2/d1", "z2/z1"})
    assert found[:len(expected)] == expected


def test_scaling_is_measured_against_one_process_of_the_same_kind(tmp_path: Path) -> None:
    plan = make_plan_of(tmp_path, "  processes: [1, 2]", "  processes: [1, 2, 4]")
    assert {"d2/d1", "d4/d1", "z2/z1", "z4/z1"} < set(contrasts(plan))
    without_one = make_plan_of(tmp_path, "  processes: [1, 2]", "  processes: [2, 4]")
    assert contrasts(without_one) == ["z2/d2", "z4/d4"]


def test_a_primary_with_a_cell_that_cannot_run_here_is_not_compared(tmp_path: Path) -> None:
    plan = make_plan_of(tmp_path)
    alone = tuple(cell for cell in plan.cells if cell.choices.processes == 1)
    order = tuple((index, repeat) for repeat in range(plan.suite.seeds) for index in range(len(alone)))
    skipped = plan.model_copy(update={"cells": alone, "order": order})
    assert contrasts(skipped) == ["z1/d1"]
    assert not compare(skipped, [])[0].primary


# ---- verdicts


@pytest.mark.parametrize(("ratio", "verdict", "because"), [
    (0.8, "faster", "the 95 % interval excludes 1, exact sign-flip p = 0.0312 (the least of 6 pairs); "
                    "6 of 6 pairs were faster; trials slower than the rest could go unseen if rarer than 39 %"),
    (1.25, "slower", "the 95 % interval excludes 1, exact sign-flip p = 0.0312 (the least of 6 pairs); "
                     "6 of 6 pairs were slower; trials slower than the rest could go unseen if rarer than 39 %"),
    (1.0, "same", "the 90 % interval 0.985 to 1.015 of the geometric mean of the ratios of pairs, that of two "
                  "one-sided tests, is inside the margin of 5 % declared beforehand (p = 0.0156); trials slower than "
                  "the rest could go unseen if rarer than 39 %"),
])
def test_the_primary_contrast_has_a_verdict(tmp_path: Path, ratio: float, verdict: str, because: str) -> None:
    plan = make_plan_of(tmp_path)
    found = primary(plan, results(plan, spread(ratio)))
    assert (found.verdict, found.because, found.n) == (verdict, because, 6)
    assert found.ratio == pytest.approx(ratio * (0.98 * 1.02) ** (1 / 3))
    assert found.interval is not None
    assert found.interval.low < found.ratio < found.interval.high
    assert found.speedup == pytest.approx(1 / found.ratio)


def test_the_ratio_is_paired_by_seed(tmp_path: Path) -> None:
    # The machine drifts by a factor of 32 from seed to seed; the ratio of a pair does not.
    plan = make_plan_of(tmp_path)
    found = primary(plan, results(plan, lambda engine, _, repeat: 2.0**repeat * (0.9 if engine != "ddp" else 1.0)))
    assert found.verdict == "faster"
    assert found.ratio == pytest.approx(0.9)
    assert found.interval is None  # every pair has the same ratio: there is no spread to make one of
    assert [pair.repeat for pair in found.pairs] == list(range(6))
    assert [pair.baseline for pair in found.pairs] == [2.0**n for n in range(6)]


def test_the_declared_metric_is_compared(tmp_path: Path) -> None:
    plan = make_plan_of(tmp_path, "  baseline: {engine: ddp, processes: 2}\n",
                        "  baseline: {engine: ddp, processes: 2}\n  metric: tta_train\n")
    found = primary(plan, results(plan, spread(0.8)))
    assert found.metric == "tta_train"
    assert found.pairs[0].baseline == 0.5
    assert compare(plan, results(plan, spread(0.8)), "tta_wall")[0].pairs[0].baseline == 1.0


# ---- forbidden statements


def test_five_pairs_have_no_verdict_however_clear(tmp_path: Path) -> None:
    plan = make_plan_of(tmp_path, "seeds: 6", "seeds: 5")
    found = primary(plan, results(plan, spread(0.1)))
    assert (found.verdict, found.n) == ("inconclusive", 5)
    assert found.because == "5 pairs cannot be significant at 5 % (exact floor p = 0.0625); 6 can"
    assert found.ratio is not None


@pytest.mark.parametrize("count", [0, 1])
def test_one_pair_has_no_ratio(tmp_path: Path, count: int) -> None:
    plan = make_plan_of(tmp_path)
    found = primary(plan, [item for item in results(plan, spread(0.8)) if item.repeat < count])
    assert (found.verdict, found.ratio, found.interval, found.n) == ("inconclusive", None, None, count)
    assert found.speedup is None
    assert found.because == f"{count} of 6 planned pairs have run; no verdict before all have"
    assert found.settles == "run the missing pairs: repro run --resume RUN"


def test_a_trial_that_missed_leaves_no_ratio(tmp_path: Path) -> None:
    plan = make_plan_of(tmp_path)
    found = primary(plan, results(plan, lambda engine, _, repeat: None if (engine, repeat) == ("ddp", 4) else 1.0,
                                  run_seconds=2.0))
    assert (found.verdict, found.ratio) == ("inconclusive", None)
    assert found.because.startswith("the baseline missed the target in 1 of 6 trials")
    assert len(found.pairs) == 5


@pytest.mark.parametrize("name", ["init_weights", "data_order", "data"])
def test_different_hashes_void_the_pairing(tmp_path: Path, name: str) -> None:
    plan = make_plan_of(tmp_path)
    found = results(plan, spread(0.8))
    odd = next(item for item in found if item.repeat == 3 and cells(plan)[item.cell_id] == "z2")
    found[found.index(odd)] = odd.model_copy(update={"hashes": {**odd.hashes, name: "other"}})
    by_pair = {f"{cells(plan)[item.candidate]}/{cells(plan)[item.baseline]}": item for item in compare(plan, found)}
    for pair in ("z2/d2", "z2/z1"):
        assert (by_pair[pair].verdict, by_pair[pair].ratio, by_pair[pair].pairs) == ("inconclusive", None, ())
        words = name.replace("_", " ")
        assert by_pair[pair].because == f"seed 3: {words} differ between the two, so they are not a pair"
    assert by_pair["z1/d1"].ratio is not None


def test_a_hash_that_only_one_of_two_finished_trials_has_voids_the_pairing(tmp_path: Path) -> None:
    plan = make_plan_of(tmp_path)
    found = results(plan, spread(0.8))
    found[0] = found[0].model_copy(update={"hashes": {}})
    assert any("are not a pair" in item.because for item in compare(plan, found))


def test_a_trial_that_ended_before_its_hashes_is_a_crash_and_no_other_seed(tmp_path: Path) -> None:
    plan = make_plan_of(tmp_path)
    found = results(plan, spread(0.8))
    index = next(i for i, item in enumerate(found) if cells(plan)[item.cell_id] == "z2")
    crashed = {"status": "crashed", "tta_wall": None, "tta_train": None, "hashes": {}}
    found[index] = found[index].model_copy(update=crashed)
    assert primary(plan, found).because.startswith("the candidate crashed in 1 of 6 trials; a failed trial")


# ---- one cell


def summary(folder: Path, values: list[float | None]) -> Summary:
    """Of a cell whose trials took `values` seconds, None: missed."""
    cell = make_plan_of(folder).cells[0]
    found = [Result(trial_id=f"t{n}", cell_id=cell.cell_id, repeat=n, attempt=1, tta_wall=value,
                    status="missed" if value is None else "ok", samples_per_second=10.0 * (n + 1), final=0.5)
             for n, value in enumerate(values)]
    return summarize(cell, reversed(found))


def test_a_cell_in_figures(tmp_path: Path) -> None:
    found = summary(tmp_path, [3.0, 1.0, 2.0, 6.0, 5.0, 4.0])
    assert (found.n, found.ok, found.median) == (6, 6, 3.5)
    assert found.values == (3.0, 1.0, 2.0, 6.0, 5.0, 4.0)  # by repeat
    assert found.interval is not None
    assert found.success is not None
    assert (found.interval.low, found.interval.high, found.interval.level) == (1.0, 6.0, 1 - 2 / 64)
    assert found.success.low == pytest.approx(0.6097, abs=1e-4)
    assert found.median_samples_per_second == 35.0
    assert found.statuses == {"ok": 6}


def test_missed_trials_count_as_longer_than_any(tmp_path: Path) -> None:
    found = summary(tmp_path, [1.0, 2.0, 3.0, None, None])
    assert (found.median, found.ok, found.n) == (3.0, 3, 5)
    assert found.interval is None  # would need the times of those that missed
    assert found.statuses == {"ok": 3, "missed": 2}


@pytest.mark.parametrize("values", [[1.0, 2.0, None, None], [1.0, None, None], [None, None], [],
                                    [1.0, 2.0, 3.0, None, None, None]])
def test_half_or_fewer_give_no_median(tmp_path: Path, values: list[float | None]) -> None:
    found = summary(tmp_path, values)
    assert found.median is None
    assert found.interval is None
    assert (found.success is None) == (not values)


# ---- the complete path from logs


def test_a_record_made_by_formula_has_the_ratios_of_the_formula(tmp_path: Path) -> None:
    record = make_record(tmp_path / "run")
    found = {f"{cells(record.plan)[item.candidate]}/{cells(record.plan)[item.baseline]}": item
             for item in compare(record.plan, record.results)}
    train, evaluation = 23 * 0.01, 0.02
    slow = [(train * 1.2 * f / 1.6 + evaluation) / (train * f / 1.6 + evaluation) for f in (1, 1.02, 1.04) * 2]
    assert found["z2/d2"].ratio == pytest.approx(math.exp(sum(map(math.log, slow)) / 6), rel=1e-6)
    assert found["z2/d2"].verdict == "slower"
    assert found["d2/d1"].verdict == "exploratory"


def test_no_verdict_while_planned_pairs_are_missing(tmp_path: Path) -> None:
    plan = make_plan_of(tmp_path)
    everything = results(plan, spread(0.5))
    one_sided = [item for item in everything if not (item.repeat == 5 and item.trial_id.startswith("deepspeed"))]
    found = primary(plan, one_sided)
    assert (found.verdict, found.n) == ("inconclusive", 5)
    assert found.because == "5 of 6 planned pairs have run; no verdict before all have"


def test_a_verdict_requires_the_exact_test_too(tmp_path: Path) -> None:
    plan = make_plan_of(tmp_path)
    factors = [1.6, 1.5, 1.4, 1.5, 1.6, 0.98]  # 5 of 6 slower: the t interval excludes 1, the exact p is 2/32
    found = primary(plan, results(plan, lambda engine, _, repeat: 1.0 if engine == "ddp" else factors[repeat]))
    assert found.interval is not None
    assert found.interval.low > 1
    assert found.verdict == "inconclusive"
    assert "exact sign-flip test does not agree (p = 0.0625)" in found.because
