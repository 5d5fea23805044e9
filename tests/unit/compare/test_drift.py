"""Drift of the machine, order of execution, and what a trial leaves behind for the next one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from repro.compare import Comparison, compare
from repro.compare.evidence.blocks import blocks_of
from repro.compare.evidence.carry_over import Carry
from repro.compare.evidence.drift import Caution, doubts, seconds_per_sample
from repro.compare.figures import Pair
from repro.core.machine import Machine
from repro.record.folder.execution import Execution
from repro.record.folder.ledger import Attempt
from repro.record.result.results import Result
from repro.suite.metrics import METRICS
from repro.suite.planning.plan import Plan, planned_order
from tests.plans import planned
from tests.records import SUITE
from tests.unit.compare.test_blocks import TWO, cells_of, ran

SEEDS = 10


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return plan_of(tmp_path, SEEDS)


def plan_of(folder: Path, seeds: int) -> Plan:
    return planned(folder, SUITE.replace("seeds: 6", f"seeds: {seeds}"), machine=Machine("cpu", 0, 8))


def made(plan: Plan, seconds: Callable[[int, str, int], float]) -> list[Result]:
    """A result a trial, by `seconds`(place in the plan's order, cell, repeat) a sample."""
    found = []
    for place, trial in enumerate(plan.trials()):
        value = seconds(place, trial.cell_id, trial.repeat)
        found.append(Result(
            trial_id=trial.trial_id, cell_id=trial.cell_id, repeat=trial.repeat, attempt=1, status="ok",
            tta_wall=5000 * value, samples_per_second=1 / value,
            hashes={"init_weights": f"w{trial.repeat}", "data_order": f"o{trial.repeat}", "data": "d"},
        ))
    return found


def cautions(plan: Plan, results: list[Result], started_ms: dict[str, float] | None = None) -> Sequence[Caution]:
    return doubts(plan, results, started(results, started_ms) if started_ms else None).found


def started(results: Sequence[Result], started_ms: dict[str, float]) -> Execution:
    """One start of each trial at these times."""
    return Execution([Attempt(trial_id=item.trial_id, cell_id=item.cell_id, repeat=item.repeat, attempt=item.attempt,
                              started_ms=started_ms[item.trial_id], seconds=1, status=item.status)
                      for item in results])


def noise(seed: int, size: float = 0.01) -> Callable[[], float]:
    generator = np.random.default_rng(seed)
    return lambda: float(np.exp(generator.normal(0, size)))


def moved(plan: Plan, results: list[Result], cell_id: str, offset: float) -> dict[str, float]:
    """Start times by the plan's order, with one cell's trials `offset` later, one after the other."""
    return {item.trial_id: place + (offset if item.cell_id == cell_id else 0.0) for place, item in enumerate(results)}


def test_a_steady_machine_gives_no_caution(plan: Plan):
    draw = noise(1)
    assert cautions(plan, made(plan, lambda place, cell, repeat: 0.001 * draw())) == []


def test_a_machine_that_slows_down_is_a_warning_for_the_whole_run(plan: Plan):
    draw = noise(2)
    found = cautions(plan, made(plan, lambda place, cell, repeat: 0.001 * (1 + 0.005 * place) * draw()))
    assert [item.cell_id for item in found] == [None]
    assert "later trials took longer, the second half" in found[0].text
    assert "ratios of times are adjusted for the places of their trials" in found[0].text


def test_the_size_of_the_drift_is_the_ratio_of_the_halves(plan: Plan):
    results = made(plan, lambda place, cell, repeat: 0.001 * 1.01**repeat)
    # mean log of repeats 5 to 9 less that of 0 to 4: 5 log 1.01
    assert f"second half {100 * (1.01**5 - 1):.1f} % longer" in cautions(plan, results)[0].text
    # ten blocks in order: tau = 1, p = 2 / 10!
    assert f"order 1.00, p = {2 / math.factorial(10):.2g}" in cautions(plan, results)[0].text


def test_a_machine_that_gets_faster_is_reported_as_such(plan: Plan):
    text = cautions(plan, made(plan, lambda place, cell, repeat: 0.001 * 0.99**repeat))[0].text
    assert "later trials took less time" in text


def test_drift_of_one_cell_alone_is_a_warning_about_that_cell(plan: Plan):
    cell = plan.cells[0].cell_id
    draw = noise(5, 0.05)
    results = made(plan, lambda place, name, repeat: 0.001 * (1.002**repeat if name == cell else draw()))
    assert [item.cell_id for item in cautions(plan, results)] == [cell]


def test_a_cell_that_ran_after_all_others_is_refused_without_any_drift(plan: Plan):
    draw = noise(1)
    cell = plan.cells[2].cell_id
    results = made(plan, lambda place, name, repeat: 0.001 * draw())
    late = started(results, moved(plan, results, cell, 1000.0))
    found = {item.candidate: item for item in compare(plan, results, execution=late) if item.baseline != cell}
    assert (found[cell].verdict, found[cell].refused, found[cell].n) == ("inconclusive", True, 0)
    assert "0 pairs in one block" in found[cell].because
    assert all(item.left_out == () for name, item in found.items() if name != cell)


def test_blocks_that_were_not_kept_show_no_drift(plan: Plan):
    """One trial of four repeats ran on a slower machine a day later."""
    draw = noise(2)
    cell = plan.cells[1].cell_id
    results = made(plan, lambda place, name, repeat: 0.001 * draw() * (1.5 if name == cell and repeat < 4 else 1.0))
    starts = {item.trial_id: place + (500.0 if item.cell_id == cell and item.repeat < 4 else 0.0)
              for place, item in enumerate(results)}
    found = doubts(plan, results, started(results, starts))
    assert found.blocks.broken == frozenset(range(4))
    assert found.drift is None


def test_equal_start_times_fall_back_to_the_order_of_the_plan(plan: Plan):
    draw = noise(2)
    results = made(plan, lambda place, cell, repeat: 0.001 * (1 + 0.005 * place) * draw())
    same = {item.trial_id: 1.0 for item in results}
    assert cautions(plan, results, same) == cautions(plan, results)


@pytest.mark.parametrize("count", [0, 4, 16])
def test_too_few_trials_say_nothing(plan: Plan, count: int):
    assert cautions(plan, made(plan, lambda place, cell, repeat: 0.001 * 1.1**place)[:count]) == []


def test_times_without_any_spread_say_nothing(plan: Plan):
    assert cautions(plan, made(plan, lambda place, cell, repeat: 0.001)) == []


def test_the_order_of_the_results_does_not_matter(plan: Plan):
    draw = noise(4)
    results = made(plan, lambda place, cell, repeat: 0.001 * (1 + 0.004 * place) * draw())
    assert cautions(plan, results[::-1]) == cautions(plan, results) != []


def test_false_alarms_of_a_steady_machine_are_as_many_as_stated(plan: Plan):
    """At most 5 % for the run and 5 % for any cell; 300 steady runs: 10 % + 3 standard errors is 45."""
    generator = np.random.default_rng(20151102)
    base = made(plan, lambda place, cell, repeat: 0.001)
    alarms = 0
    for _ in range(300):
        seeds = np.exp(generator.normal(0, 0.03, SEEDS))  # shared by the cells of one seed, as seeds are
        rates = np.exp(generator.normal(0, 0.03, len(base)))
        results = [item.model_copy(update={"samples_per_second": float(1000 * rate * seeds[item.repeat])})
                   for item, rate in zip(base, rates, strict=True)]
        alarms += bool(cautions(plan, results))
    print(f"false alarms of drift: {alarms} of 300")
    assert 3 <= alarms <= 45


def test_seconds_per_sample_prefers_training_and_needs_a_clock():
    base = Result(trial_id="t", cell_id="c", repeat=0, attempt=1, status="ok", tta_wall=7.0)
    assert seconds_per_sample(base) == 7.0
    assert seconds_per_sample(base.model_copy(update={"samples_per_second": 4.0})) == 0.25
    both = {"train_samples_per_second": 5.0, "samples_per_second": 4.0}
    assert seconds_per_sample(base.model_copy(update=both)) == 0.2
    assert seconds_per_sample(base.model_copy(update={"status": "missed"})) is None
    assert seconds_per_sample(base.model_copy(update={"samples_per_second": float("nan")})) is None
    assert seconds_per_sample(base.model_copy(update={"tta_wall": -1.0})) is None


def test_a_warning_is_shown_next_to_the_verdict(plan: Plan):
    results = made(plan, lambda place, cell, repeat: 0.001 * 1.01**repeat * (1.2 if "deepspeed" in cell else 1.0))
    found = compare(plan, results)[0]
    assert found.verdict == "slower"
    assert any("the machine drifted during the run" in text for text in found.cautions)


def drifting(plan: Plan, seed: int, slow: float = 1.0, drift: float = 0.3, spread: float = 0.01) -> Comparison:
    """The primary contrast of a run whose machine is `drift` slower at its end than at its start."""
    draw, last = noise(seed, spread), len(plan.order) - 1
    ours = next(cell.cell_id for cell in plan.cells
                if cell.choices.engine.kind == "deepspeed" and cell.choices.processes == 2)
    return compare(plan, made(plan, lambda place, cell, repeat: (
        0.001 * (1 + drift * place / last) * draw() * (slow if cell == ours else 1.0))))[0]


def shuffled(plan: Plan, seed: int) -> Plan:
    """The plan in an order of its own, drawn for this run."""
    rng = np.random.default_rng(seed)
    order = tuple((int(cell), repeat) for repeat in range(SEEDS) for cell in rng.permutation(len(plan.cells)))
    return plan.model_copy(update={"order": order})


def test_an_order_of_its_own_keeps_the_level_and_finds_the_difference(plan: Plan):
    same = [drifting(shuffled(plan, seed), seed) for seed in range(20)]
    assert sum(item.verdict in ("faster", "slower") for item in same) <= 4
    found = [drifting(shuffled(plan, seed), seed, 1.015) for seed in range(12)]
    assert sum(item.verdict == "slower" for item in found) >= 7  # unadjusted: 59 of 100; adjusted: 81


def test_the_adjustment_removes_what_the_places_explain(plan: Plan):
    found = drifting(shuffled(plan, 1), 1, 1.1, spread=1e-4)
    assert found.adjusted is not None and found.ratio is not None
    assert found.ratio == pytest.approx(1.1, rel=2e-3)
    assert found.adjusted.per_place == pytest.approx(0.3 / 39 / 1.15, rel=0.2)
    assert math.log(found.adjusted.unadjusted / found.ratio) == pytest.approx(
        math.log1p(found.adjusted.per_place) * found.adjusted.places, rel=1e-6)
    assert any("adjusted for drift: the candidate ran" in text for text in found.cautions)


def test_counts_are_not_adjusted_for_the_machine(plan: Plan):
    results = [item.model_copy(update={"samples_to_target": 1000 + item.repeat}) for item in made(
        plan, lambda place, cell, repeat: 0.001 * 1.01**place)]
    assert all(item.adjusted is None for item in compare(plan, results, "samples"))
    assert all(item.adjusted is not None for item in compare(plan, results, "throughput"))


# ---- carry-over


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
