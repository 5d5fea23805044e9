"""The simulation of verdicts: runs are what their design says, and the rows count what they should."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.__main__ import main
from benchmarks.verdicts.experiment import Experiment, places_of, simulated
from benchmarks.verdicts.measure import VerdictErrors, allowed, measure, simulate
from benchmarks.verdicts.scenario import Judged, Scenario, single_run
from benchmarks.verdicts.scenarios import SCENARIOS
from benchmarks.verdicts.screen import DISAGREE, is_open, paired_p
from benchmarks.verdicts.sequential_runs import adjusted_logs, places_in_order
from repro.compare import compare
from repro.compare.evidence import drift

MEASURED = pytest.mark.parametrize("name", [item.name for item in SCENARIOS])


def times(design: Experiment, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Log times of candidate and baseline by seed."""
    run = simulated(design, np.random.default_rng(seed))
    cells = [run.plan.cells[place].cell_id for place in places_of(design.cells)]
    sides = [{item.repeat: item.tta_wall for item in run.results if item.cell_id == cell} for cell in cells]
    ours, theirs = (np.log([side[repeat] for repeat in sorted(side)]) for side in sides)
    assert run.logs == pytest.approx(ours - theirs, abs=1e-12)
    return ours, theirs


def test_every_scenario_has_its_own_name_and_with_it_its_own_seed() -> None:
    names = [item.name for item in SCENARIOS]
    assert len(set(names)) == len(names) > 60


def test_simulated_times_have_the_ratio_and_the_spread_of_their_design() -> None:
    ours, theirs = times(Experiment(1000, ratio=1.1, spread=0.1))
    assert np.mean(ours - theirs) == pytest.approx(math.log(1.1), abs=0.02)
    assert np.std(ours - theirs) == pytest.approx(0.1 * math.sqrt(2), rel=0.1)
    assert np.std(ours) == pytest.approx(math.hypot(0.1, 0.2), rel=0.1)


def test_a_drift_slows_later_trials_of_all_cells() -> None:
    run = simulated(Experiment(50, cells=4, spread=0.01, within="speed", drift=0.3), np.random.default_rng(1))
    assert [(run.plan.cells[index].cell_id, repeat) for index, repeat in run.plan.order] == [
        (item.cell_id, item.repeat) for item in run.results]
    pace = [item.run_seconds / item.samples for item in run.results if item.run_seconds and item.samples]
    assert np.mean(pace[-40:]) / np.mean(pace[:40]) == pytest.approx(1.24, abs=0.02)


def test_two_runs_that_drift_have_their_own_order() -> None:
    generator = np.random.default_rng(1)
    first, second = (simulated(Experiment(10, cells=4, drift=0.1), generator).plan for _ in range(2))
    assert first.order != second.order
    assert sorted(first.order) == sorted(second.order)


@pytest.mark.parametrize("by", ["chance", "diverged", "budget"])
def test_the_share_of_missed_trials_is_the_designs(by: str) -> None:
    run = simulated(Experiment(500, missed=0.2, missed_by=by), np.random.default_rng(1))  # type: ignore[arg-type]
    results = run.results
    assert np.sum(~np.isfinite(run.logs)) == len({item.repeat for item in results if item.status != "ok"})
    ends = [item.status for item in results]
    assert ends.count("diverged" if by == "diverged" else "missed") / 1000 == pytest.approx(0.2, abs=0.04)
    assert all(item.tta_wall is None for item in results if item.status != "ok")


def test_evaluations_lie_on_the_grid_of_each_cell() -> None:
    run = simulated(Experiment(5, grids=(0.1, 0.25)), np.random.default_rng(1))
    for place, distance in zip(places_of(2), (100_000, 250_000), strict=True):
        for item in (item for item in run.results if item.cell_id == run.plan.cells[place].cell_id):
            assert item.bracket is not None and item.samples_to_target == item.bracket.hit_samples
            assert item.bracket.hit_samples - item.bracket.miss_samples == distance
            assert [point.samples for point in item.curve] == list(
                range(distance, item.bracket.hit_samples + 1, distance))


def test_a_row_that_errs_too_often_does_not_hold() -> None:
    always = Scenario("always wrong", "equal", lambda *_: Judged("faster", True), wrong=frozenset({"faster"}))
    found = simulate(always, 100)
    assert (found.wrong, found.holds, found.words) == (1.0, False, {"faster": 100})
    assert "NOT HELD" in found.text()
    assert simulate(Scenario("never", "equal", lambda *_: Judged("same"), wrong=frozenset({"faster"})), 100).holds


@pytest.mark.parametrize(("shares", "holds"), [({}, True), ({"least": 0.9}, False), ({"most": 0.3}, False),
                                               ({"relative": 0.9}, False), ({"relative": 0.5, "most": 0.6}, True)])
def test_a_row_holds_the_power_that_is_promised(shares: dict[str, float], holds: bool) -> None:
    # finds the difference in every second experiment, the t test in three of four
    scenario = Scenario("half", "ratio 1.1", lambda generator, _: Judged(
        "slower" if (draw := generator.random()) < 0.5 else "inconclusive", draw < 0.75),
        right=frozenset({"slower"}), **shares)
    assert simulate(scenario, 400).holds is holds


def test_the_limit_is_3_3_standard_errors_above_five_per_cent() -> None:
    assert allowed(4000) == pytest.approx(0.05 + 3.3 * math.sqrt(0.05 * 0.95 / 4000))
    assert round(allowed(4000), 3) == 0.061


def test_a_row_does_not_depend_on_the_others() -> None:
    alone = measure(20, "t3, 10 pairs, different").rows[0]
    assert alone == next(row for row in measure(20, "t3, 10").rows if row.name == alone.name)


def test_the_verdict_is_that_of_compare() -> None:
    design = Experiment(10, ratio=1.13)
    scenario = single_run("x", design)
    for seed in range(20):
        judged = scenario.judge(np.random.default_rng(seed), False)
        run = simulated(design, np.random.default_rng(seed))
        p = paired_p(run.logs)
        assert judged == (compare(run.plan, run.results)[0].verdict, p is not None and p <= 0.05)


def test_the_command_prints_rows_and_fails_if_one_does_not_hold(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["verdicts", "--experiments", "20", "--only", "t3, 20 pairs"]
    assert main(arguments) == 0
    assert "all 2 rows hold" in capsys.readouterr().out
    assert main(["verdicts", "--only", "moon"]) == 2
    assert "no scenario is named 'moon'" in capsys.readouterr().err
    assert main(["verdicts", "--experiments", "many"]) == 2
    monkeypatch.setattr(VerdictErrors, "holds", False)
    assert main(arguments) == 3


@pytest.mark.slow
@MEASURED
def test_no_scenario_errs_more_than_promised(name: str) -> None:
    row = simulate(next(item for item in SCENARIOS if item.name == name), 200)
    print(row.text())
    assert row.wrong is None or row.wrong <= allowed(200, row.rate)
    assert row.found is None or row.least is None or row.found >= row.least - 0.1


@pytest.mark.slow
@pytest.mark.parametrize("runs", [6, 10, 20])
def test_a_quality_at_the_target_is_called_faster_in_no_more_contests_than_alpha(runs: int) -> None:
    name = f"contest, {runs} runs, quality at the target"
    row = simulate(next(item for item in SCENARIOS if item.name == name), 4000)
    assert row.words.get(DISAGREE) is None and row.rate == 0.01
    assert row.wrong is not None and 0.004 < row.wrong <= allowed(4000, 0.01) < 0.0153


@pytest.mark.slow
def test_rows_in_parallel_are_the_same() -> None:
    assert measure(20, "t3, 20", processes=2) == measure(20, "t3, 20")


SHORT = [
    "log-normal, 10 pairs, different", "t3, 20 pairs", "grid 20%", "missed 20% by budget, 10 pairs",
    "sequential, power 2, different", "sequential, power 2, missed 20% by chance", "anytime"]


@pytest.mark.parametrize(("name", "count"), [
    *((name, 5) for name in SHORT),
    *(pytest.param(item.name, 60, marks=pytest.mark.slow) for item in SCENARIOS)])
def test_the_short_cut_gives_the_words_of_compare(name: str, count: int) -> None:
    scenario = next(item for item in SCENARIOS if item.name == name)
    for seed in range(count):
        quick, full = (scenario.judge(np.random.default_rng(seed), checked) for checked in (False, True))
        assert quick == full and full.word != DISAGREE


def test_the_short_cut_leaves_whatever_could_be_decided() -> None:
    generator = np.random.default_rng(3)
    assert is_open(generator.normal(0, 0.3, 10))
    assert not is_open(generator.normal(0.3, 0.1, 10))  # different
    assert not is_open(generator.normal(0, 0.001, 10))  # the same
    assert not is_open(np.zeros(10))  # without a spread
    assert not is_open(np.array([np.inf] * 8 + [0.1, -0.1]))
    assert is_open(np.array([np.inf, -np.inf] * 4 + [0.1, -0.1]))


def test_the_drift_that_the_short_cut_takes_out_is_that_of_compare() -> None:
    design = Experiment(16, within="speed", drift=0.5)
    for seed in range(4):
        run = simulated(design, np.random.default_rng(seed))
        candidate, baseline = (run.plan.cells[place].cell_id for place in places_of(2))
        for pairs in (7, 12, 16):
            found = drift.doubts(run.plan, [item for item in run.results if item.repeat < pairs])
            slots = found.slots(candidate, baseline)
            shifts = [slots.shift(repeat) if slots else 0.0 for repeat in range(pairs)]
            quick = adjusted_logs(run, places_in_order(run), pairs)
            assert quick == pytest.approx(run.logs[:pairs] - shifts, abs=1e-9)
    assert slots is not None, "the last of them drifted visibly"
