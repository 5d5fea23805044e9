"""Carry-over: what a trial leaves behind for the next one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from repro.compare import Comparison, compare
from repro.compare.evidence.blocks import blocks_of
from repro.compare.evidence.carry_over import Carry
from repro.compare.figures import Pair
from repro.core.machine import Machine
from repro.record.result.results import Result
from repro.suite.metrics import METRICS
from repro.suite.planning.plan import Plan, planned_order
from tests.plans import planned
from tests.unit.compare.test_blocks import TWO, cells_of, ran


def drawn(folder: Path, seed: int) -> Plan:
    """Two cells, 20 repeats, in an order of its own."""
    plan = planned(folder, TWO, machine=Machine("cpu", 0, 8)).model_copy(update={"order_seed": seed})
    return plan.model_copy(update={"order": tuple(planned_order(plan))})


def warmed(plan: Plan, size: float, seed: int, ratio: float = 1.0) -> list[Result]:
    """Results with a spread of 1 % whose trial takes longer right after one of the baseline."""
    results, _ = ran(plan, (), 0.0, seed, ratio)
    baseline, before = cells_of(plan)[1], ""
    found = []
    for item in results:
        factor = 1 + size * (before == baseline)
        assert item.tta_wall is not None
        found.append(item.model_copy(update={"tta_wall": item.tta_wall * factor,
                                             "samples_per_second": 1 / (item.tta_wall * factor)}))
        before = item.cell_id
    return found


def primary(plan: Plan, results: list[Result]) -> Comparison:
    return next(item for item in compare(plan, results) if item.primary)


def test_the_parts_are_the_trials_before(tmp_path: Path) -> None:
    plan = drawn(tmp_path, 5)
    ours, theirs = cells_of(plan)
    parts = Carry.of(ours, theirs, blocks_of(plan, ran(plan, (), 0.0, 1)[0]).before).parts
    order = [plan.cells[index].cell_id for index, _ in plan.order]
    assert set(parts) == set(range(1, 20)), "nothing ran before the first pair"
    # Both trials followed the same cell, or each the other one.
    assert parts == {repeat: float(order[2 * repeat - 1] != order[2 * repeat]) for repeat in range(1, 20)}


def test_a_carry_over_is_found_and_said_next_to_the_verdict(tmp_path: Path) -> None:
    plan = drawn(tmp_path, 5)
    found = primary(plan, warmed(plan, 0.05, 1))
    assert found.carry_over is not None and found.carry_over.clear
    assert found.carry_over.after_baseline.value == pytest.approx(1.05, abs=0.015)
    assert found.carry_over.words in found.cautions
    assert found.carry_over.ratio.value == pytest.approx(1, abs=0.015)
    assert found.ratio is not None and found.ratio > 1.015, "the verdict is not adjusted"
    rate = compare(plan, warmed(plan, 0.05, 1), "throughput")[0]
    assert rate.carry_over is not None
    assert rate.carry_over.after_baseline.value == pytest.approx(found.carry_over.after_baseline.value)
    assert compare(plan, warmed(plan, 0.05, 1), "samples")[0].carry_over is None
    assert found.carry_over.words.endswith("if that is alike for both cells")
    assert "wash_out" not in found.carry_over.model_copy(update={"washed": True}).words, "it is on already"


def test_the_estimate_is_that_of_least_squares(tmp_path: Path) -> None:
    plan = drawn(tmp_path, 7)
    results = warmed(plan, 0.02, 3)
    found = primary(plan, results).carry_over
    assert found is not None
    ours, theirs = cells_of(plan)
    parts = Carry.of(ours, theirs, blocks_of(plan, results).before).parts
    times = {(item.cell_id, item.repeat): item.tta_wall or 0 for item in results}
    logs = [np.log(times[ours, repeat] / times[theirs, repeat]) for repeat in parts]
    from scipy.stats import linregress, t

    fit = linregress(list(parts.values()), logs)
    half = t.ppf(0.975, len(logs) - 2) * np.array([fit.stderr, fit.intercept_stderr])
    for estimate, middle, wide in ((found.after_baseline, fit.slope, half[0]), (found.ratio, fit.intercept, half[1])):
        assert estimate.interval is not None
        assert np.log([estimate.value, estimate.interval.low, estimate.interval.high]) == pytest.approx(
            [middle, middle - wide, middle + wide], abs=1e-9)


def test_false_alarms_are_five_in_a_hundred(tmp_path: Path) -> None:
    plans = [drawn(tmp_path, seed) for seed in range(4)]
    clear = 0
    for seed in range(100):
        found = primary(plans[seed % 4], warmed(plans[seed % 4], 0.0, seed)).carry_over
        assert found is not None
        clear += found.clear
    assert clear <= 12  # 5 and 3.2 standard errors


def test_an_order_that_cannot_show_it_gives_no_estimate() -> None:
    pairs = [Pair(repeat=repeat, candidate=1.0 + repeat / 100, baseline=1.0) for repeat in range(8)]
    assert Carry(dict.fromkeys(range(8), 1.0)).estimate(pairs) is None
    assert Carry({0: 0.0, 1: 1.0}).estimate(pairs) is None
    assert Carry().estimate(pairs) is None
    assert Carry({repeat: repeat % 2 for repeat in range(8)}).estimate(pairs) is not None
    assert METRICS["throughput"].drift_sign == -1
