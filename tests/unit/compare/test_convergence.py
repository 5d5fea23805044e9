"""Convergence by samples to the target: equivalent only where it was shown, and no finer than the grid."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from repro.compare import Pair
from repro.compare.verdict.convergence import certain_p, check, pair_ranges
from repro.core.machine import Machine
from repro.record.result.results import Bracket, Point, Result
from repro.suite.planning.plan import Plan
from tests.plans import planned
from tests.records import SUITE

ONE = SUITE.replace("  processes: [1, 2]\n", "").replace(", processes: 2", "")
"""Two cells: ddp and deepspeed."""


def plan_of(folder: Path, seeds: int, text: str = ONE) -> Plan:
    return planned(folder, text.replace("seeds: 6", f"seeds: {seeds}"), machine=Machine("cpu", 0, 8))


def made(plan: Plan, crossing: Callable[[str, int], float | None], grid: int) -> list[Result]:
    """Trials whose true crossing, in samples, is seen at the next multiple of `grid`; None: missed."""
    found = []
    for trial in plan.trials():
        true = crossing(trial.choices.engine.kind, trial.repeat)
        base = {"trial_id": trial.trial_id, "cell_id": trial.cell_id, "repeat": trial.repeat, "attempt": 1,
                "hashes": {"init_weights": f"w{trial.repeat}", "data_order": f"o{trial.repeat}", "data": "d"}}
        if true is None:
            found.append(Result.model_validate({**base, "status": "missed", "samples": 10 * grid}))
            continue
        hit = math.ceil(true / grid) * grid
        bracket = Bracket(miss_samples=hit - grid, hit_samples=hit, miss_wall_seconds=0.9, hit_wall_seconds=1.0)
        found.append(Result.model_validate({**base, "status": "ok", "samples_to_target": hit, "tta_wall": 1.0,
                                            "bracket": bracket}))
    return found


def test_the_same_samples_on_a_fine_grid_are_equivalent(tmp_path: Path):
    plan = plan_of(tmp_path, 6)
    row, = check(plan, made(plan, lambda engine, repeat: 10_000 + 700 * repeat, 100))
    assert row.verdict == "equivalent"
    assert row.p == pytest.approx(0.5**6)
    assert (row.workload, row.global_batch, row.precision) == ("digits", 64, "fp32")
    assert row.grid == pytest.approx(np.median([1 / (99 + 7 * k) for k in range(6)]))
    assert "in 6 pairs the brackets of the crossings are so close" in row.because


def test_the_same_samples_on_a_coarse_grid_are_inconclusive(tmp_path: Path):
    plan = plan_of(tmp_path, 6)
    row, = check(plan, made(plan, lambda engine, repeat: 10_000, 2000))
    assert row.verdict == "inconclusive"
    assert "evaluate more often" in row.because


def test_four_equal_pairs_are_not_enough(tmp_path: Path):
    plan = plan_of(tmp_path, 4)
    row, = check(plan, made(plan, lambda engine, repeat: 10_000 + 700 * repeat, 100))
    assert row.verdict == "inconclusive"


def test_more_samples_are_slower_and_fewer_faster(tmp_path: Path):
    plan = plan_of(tmp_path, 8)
    generator = np.random.default_rng(3)
    jitter = {engine: generator.normal(1, 0.02, 8) for engine in ("ddp", "deepspeed")}
    for factor, word in ((1.3, "slower"), (0.7, "faster")):
        row, = check(plan, made(plan, lambda engine, repeat, factor=factor: 20_000 * jitter[engine][repeat] * (
            factor if engine == "deepspeed" else 1.0), 100))
        assert row.verdict == word
        assert row.ratio == pytest.approx(factor, rel=0.05)


def test_a_small_spread_within_the_margin_is_equivalent_by_tost(tmp_path: Path):
    plan = plan_of(tmp_path, 10)
    generator = np.random.default_rng(5)
    row, = check(plan, made(plan, lambda engine, repeat: 20_000 * float(np.exp(generator.normal(0, 0.01))), 10))
    assert row.verdict == "equivalent"
    assert "inside the margin" in row.because


def test_a_missed_target_is_never_equivalent(tmp_path: Path):
    plan = plan_of(tmp_path, 6)
    results = made(plan, lambda engine, repeat: None if engine == "deepspeed" and repeat == 2 else 10_000, 100)
    row, = check(plan, results)
    assert row.verdict == "inconclusive"
    assert row.ratio is None


def test_a_record_that_is_not_complete_has_no_verdict(tmp_path: Path):
    plan = plan_of(tmp_path, 10)
    results = [item for item in made(plan, lambda engine, repeat: 10_000 + 700 * repeat, 100) if item.repeat < 8]
    row, = check(plan, results)
    assert row.verdict == "inconclusive"
    assert "8 of 10 planned pairs have run" in row.because


def test_groups_separate_batches_and_precisions(tmp_path: Path):
    text = SUITE.replace("  processes: [1, 2]\n", "  batch.global: [64, 128]\n  precision: [fp32, bf16-autocast]\n") \
        .split("primary:")[0]
    plan = plan_of(tmp_path, 6, text)
    rows = check(plan, made(plan, lambda engine, repeat: 10_000 + 700 * repeat, 100))
    assert {(row.global_batch, row.precision) for row in rows} == {
        (batch, precision) for batch in (64, 128) for precision in ("fp32", "bf16-autocast")}
    assert all("deepspeed" in row.candidate and "ddp" in row.baseline for row in rows)
    assert [row.verdict for row in rows] == ["inconclusive"] * 4  # 2^-6 x 4 contrasts is above 5 %


def bracket(miss: int, hit: int) -> Bracket:
    return Bracket(miss_samples=miss, hit_samples=hit, miss_wall_seconds=0.0, hit_wall_seconds=1.0)


def test_ranges_of_pairs_by_hand():
    pairs = [Pair(repeat=3, candidate=200, baseline=100), Pair(repeat=4, candidate=100, baseline=100)]
    found = pair_ranges(pairs, {3: bracket(150, 200), 4: bracket(0, 100)}, {3: bracket(50, 100), 4: bracket(0, 100)})
    assert found[0] == pytest.approx((math.log(1.5), math.log(4.0)))
    assert found[1] == (-math.inf, math.inf)


def test_the_certain_test_by_hand():
    inside = (-0.01, 0.01)
    assert certain_p([inside] * 6, 0.05) == pytest.approx(1 / 64)
    # five of six below the upper edge: P(Bin(6, 1/2) >= 5) = 7/64; the other side has all six
    assert certain_p([inside] * 5 + [(0.0, 0.2)], 0.05) == pytest.approx(7 / 64)
    assert certain_p([(-math.inf, math.inf)] * 6, 0.05) == 1.0
    with pytest.raises(ValueError, match="no pairs"):
        certain_p([], 0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("seeds", "grid"), [(6, 100), (10, 500), (10, 2000)])
def test_cells_that_differ_by_the_margin_are_rarely_called_equivalent(tmp_path: Path, seeds: int, grid: int):
    """At a true ratio of exactly 1.05 the verdict `equivalent` is wrong: at most 5 % + 3 standard errors of 200."""
    plan = plan_of(tmp_path, seeds)
    generator = np.random.default_rng(20151102)
    wrong = 0
    for _ in range(200):
        shared = np.exp(generator.normal(0, 0.05, seeds))
        own = np.exp(generator.normal(0, 0.02, (2, seeds)))
        row, = check(plan, made(plan, lambda engine, repeat, shared=shared, own=own: float(
            20_000 * shared[repeat] * (own[0, repeat] if engine == "ddp" else 1.05 * own[1, repeat])), grid))
        wrong += row.verdict == "equivalent"
    print(f"equivalent at the margin, {seeds} pairs, grid {grid}: {wrong} of 200")
    assert wrong <= 19


def test_unlike_grids_alone_make_no_difference_of_samples(tmp_path: Path):
    text = SUITE.split("matrix:")[0] + "matrix:\n  evaluate_every: [640, 2560]\n"
    plan = plan_of(tmp_path, 10, text)
    fine = plan.cells[0].cell_id
    for true, word in ((1.0, "inconclusive"), (1.6, "slower")):
        results = [item for grid, factor, own in ((640, 1.0, True), (2560, true, False))
                   for item in made(plan, lambda engine, repeat, factor=factor: factor * (12_900 + 40 * repeat), grid)
                   if (item.cell_id == fine) == own]
        results = [item.model_copy(update={"curve": (Point(
            samples=640 if item.cell_id == fine else 2560, epochs=1, wall_seconds=0.1, train_seconds=0.1, value=0.1),)})
            for item in results]
        row, = check(plan, results)
        assert row.verdict == word
    assert row.ratio is not None


def test_the_reproduction_of_a_part_gives_no_separate_answer(tmp_path: Path) -> None:
    """Its pairs were chosen after the results of the record were seen, and have its seeds."""
    plan = plan_of(tmp_path, 12)
    results = made(plan, lambda engine, repeat: (10_000 + 700 * repeat) * (0.9 if engine == "ddp" else 1.0), 10)
    assert check(plan, results)[0].verdict == "slower"
    part = plan.model_copy(update={"kind": "reproduction", "order": tuple(at for at in plan.order if at[1] < 7)})
    row, = check(part, [item for item in results if item.repeat < 7])
    assert (row.verdict, row.ratio, row.p) == ("inconclusive", None, None)
    assert row.because == ("the reproduction of a part has 7 of 12 planned pairs; it is judged against its source and "
                           "gives no separate verdict")
