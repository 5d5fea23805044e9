"""Evaluation grids: brackets in a metric's own unit, "same" on coarse grids, verdicts on unlike grids."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from repro.compare import Comparison, contrast
from repro.compare.evidence.evidence import ComparisonRequest, examine
from repro.compare.evidence.grid import Grid, span_of, unlike_grids
from repro.compare.evidence.pooled import pool
from repro.compare.evidence.stage import Stage
from repro.compare.verdict.verdict import judged
from repro.record.result.results import Bracket, Point, Result, figure
from repro.suite.metrics import METRICS
from tests.made_cells import BASELINE, CANDIDATE, MadeCell, result

TIMES = ("tta_wall", "tta_train", "tta_cold", "samples")


def seen(cell: MadeCell, repeat: int, crossing: float, step: float, weights: str = "", **changes: Any) -> Result:
    """A trial of 1 sample/ms that crosses its target at `crossing` s and is evaluated every `step` s; evaluations take
    a tenth of their interval, the launch 1 s."""
    hit = math.ceil(crossing / step)
    points = tuple(Point(samples=round(1000 * step * k), epochs=k, wall_seconds=1.1 * step * k, train_seconds=step * k,
                         value=0.5 + 0.4 * (k >= hit)) for k in range(1, hit + 1))
    bracket = Bracket(
        miss_samples=round(1000 * step * (hit - 1)), hit_samples=round(1000 * step * hit),
        miss_wall_seconds=1.1 * step * (hit - 1), hit_wall_seconds=1.1 * step * hit)
    return result(cell, repeat, 1.1 * step * hit, bracket=bracket, curve=points, tta_train=step * hit,
                  tta_cold=1 + 1.1 * step * hit, samples_to_target=round(1000 * step * hit), **changes)


def spanned(trial: Result, metric: str) -> tuple[float, float] | None:
    spec = METRICS[metric]
    value = figure(trial, spec)
    return None if value is None else span_of(trial, spec, value)


def both(ratio: float, steps: tuple[float, float], n: int, seed: int, metric: Any, spread: float = 0.02) -> Comparison:
    """A candidate that needs `ratio` times as long, each cell on its own grid."""
    rng = np.random.default_rng(seed)
    sides = [[seen(cell, k, scale * 10 * value, step) for k, value in enumerate(rng.lognormal(0, spread, n))]
             for cell, scale, step in zip((CANDIDATE, BASELINE), (ratio, 1.0), steps, strict=True)]
    return contrast(CANDIDATE, BASELINE, *sides, metric, primary=True)


@pytest.mark.parametrize(("metric", "low", "high"), [
    ("tta_wall", 8.8, 9.9), ("tta_train", 8.0, 9.0), ("tta_cold", 9.8, 10.9), ("samples", 8000, 9000),
])
def test_a_crossing_lies_between_the_last_miss_and_the_first_hit_by_the_clock_of_the_metric(
    metric: str, low: float, high: float,
) -> None:
    assert spanned(seen(CANDIDATE, 0, 8.5, 1.0), metric) == pytest.approx((low, high))


def test_a_hit_at_the_first_evaluation_has_no_lower_end_but_the_start() -> None:
    trial = seen(CANDIDATE, 0, 0.3, 1.0)
    assert spanned(trial, "tta_wall") == (0.0, 1.1)
    assert spanned(trial, "tta_cold") == pytest.approx((1.0, 2.1))


def test_hits_that_confirm_the_target_move_the_bracket() -> None:
    first = seen(CANDIDATE, 0, 8.5, 1.0)
    later = Point(samples=10_000, epochs=10, wall_seconds=11.0, train_seconds=10.0, value=0.9)
    trial = first.model_copy(update={"curve": (*first.curve, later), "samples_to_target": 10_000, "tta_wall": 11.0,
                                     "tta_train": 10.0})
    assert spanned(trial, "tta_wall") == pytest.approx((8.8, 9.9))
    assert spanned(trial, "tta_train") == pytest.approx((8.0, 9.0))


@pytest.mark.parametrize("metric", ["tta_wall", "tta_train", "tta_cold"])
def test_hits_that_confirm_the_target_move_the_bracket_without_counts_and_in_means_too(metric: str) -> None:
    """Four more hits confirm it, at half of the time again: without the move the bracket looks half as wide."""
    first = seen(CANDIDATE, 0, 8.5, 1.0)
    later = tuple(Point(samples=1000 * k, epochs=k, wall_seconds=1.1 * k, train_seconds=k, value=0.9)
                  for k in range(10, 14))
    trial = first.model_copy(update={"curve": (*first.curve, *later), "samples_to_target": 13_000, "tta_wall": 14.3,
                                     "tta_train": 13.0, "tta_cold": 15.3})
    wanted = spanned(trial, metric)
    assert spanned(trial.model_copy(update={"samples_to_target": None}), metric) == wanted
    earlier = seen(CANDIDATE, 0, 6.5, 1.0)
    mean, = pool([{0: trial}, {0: earlier}])
    ends = zip(wanted or (), spanned(earlier, metric) or (), strict=True)
    assert span_of(mean, METRICS[metric], mean.at(METRICS[metric].path) or 0.0) == pytest.approx(
        [math.sqrt(one * other) for one, other in ends])


@pytest.mark.parametrize("metric", TIMES)
@pytest.mark.parametrize(("step", "ratio"), [(0.5, 1.06), (1.0, 1.08), (3.3, 1.10)])
def test_same_is_wrong_in_at_most_five_per_cent_on_a_coarse_grid(metric: str, step: float, ratio: float) -> None:
    """Evaluations 5, 10 and 33 % apart, a true ratio beyond the margin of 5 %."""
    verdicts = [both(ratio, (step, step), 10, seed, metric).verdict for seed in range(40)]
    assert verdicts.count("same") <= 2


def test_same_is_still_found_on_a_grid_that_resolves_the_margin() -> None:
    assert [both(1.0, (0.05, 0.05), 10, seed, "tta_wall", 0.01).verdict for seed in range(5)].count("same") >= 4


@pytest.mark.parametrize("metric", TIMES)
@pytest.mark.parametrize("steps", [(0.5, 1.0), (3.3, 0.5), (1.0, 1.1)])
def test_unlike_grids_alone_give_no_verdict(metric: str, steps: tuple[float, float]) -> None:
    found = [both(1.0, steps, 10, seed, metric) for seed in range(20)]
    assert sum(item.verdict in ("faster", "slower", "same") for item in found) <= 1
    assert all(any("the evaluation grids differ" in text for text in item.cautions) for item in found)


def numbered(trial: Result, epoch: float = 0.0) -> Result:
    """The same of a program that states no step, but perhaps the epoch."""
    return trial.model_copy(update={"samples_to_target": None, "samples": None, "curve": tuple(
        point.model_copy(update={"samples": k, "epochs": epoch * k}) for k, point in enumerate(trial.curve, 1))})


def numbered_both(ratio: float, steps: tuple[float, float], seed: int, epochs: tuple[float, float]) -> Comparison:
    rng = np.random.default_rng(seed)
    sides = [[numbered(seen(cell, k, scale * 10 * value, step), epoch) for k, value in enumerate(rng.lognormal(
        0, 0.02, 10))] for cell, scale, step, epoch in zip(
        (CANDIDATE, BASELINE), (ratio, 1.0), steps, epochs, strict=True)]
    return contrast(CANDIDATE, BASELINE, *sides, "tta_wall", primary=True)


@pytest.mark.parametrize("steps", [(0.5, 1.9), (1.9, 0.1)])
def test_numbered_evaluations_that_are_further_apart_alone_give_no_verdict(steps: tuple[float, float]) -> None:
    """Equal programs, of which one prints its quality more often: all 20 were called different."""
    found = [numbered_both(1.0, steps, seed, (0.0, 0.0)) for seed in range(20)]
    assert sum(item.verdict in ("faster", "slower", "same") for item in found) <= 1
    assert all(any("no step of an evaluation is stated" in text for text in item.cautions) for item in found)
    other = numbered_both(1.0, steps, 1, (0.05, 0.2))
    assert other.verdict == "inconclusive", "their epochs differ"


def test_programs_with_equal_epochs_or_clearly_faster_ones_need_no_steps() -> None:
    assert numbered_both(0.5, (0.5, 1.0), 1, (0.0, 0.0)).verdict == "faster"
    assert numbered_both(0.9, (0.9, 1.0), 1, (0.0, 0.0)).verdict == "inconclusive", "the grids alone could do that"
    assert numbered_both(0.9, (0.09, 0.1), 1, (0.0, 0.0)).verdict == "faster"
    found = numbered_both(0.7, (1.4, 2.0), 1, (0.2, 0.2))
    assert found.verdict == "faster" and not any("grids" in text for text in found.cautions)


def test_unlike_grids_leave_a_difference_that_they_cannot_produce() -> None:
    found = both(2.0, (1.0, 1.1), 10, 1, "tta_wall")
    assert found.verdict == "slower"


def test_unlike_grids_are_judged_at_the_level_of_the_family_or_the_look() -> None:
    """A ratio that the grids could produce at 99.5 %, not at 95 %, decides alone, but not early or as one of ten."""
    def sides(shift: float) -> tuple[list[Result], list[Result]]:
        rng = np.random.default_rng(1)
        ours, theirs = ([seen(cell, k, scale * 10 * x, step) for k, x in enumerate(rng.lognormal(0, 0.15, 12))]
                        for cell, scale, step in ((CANDIDATE, shift, 0.5), (BASELINE, 1.0, 0.6)))
        return ours, theirs

    def verdict(ratio: float, contrasts: int, stage: Stage | None = None) -> str:
        asked = ComparisonRequest("tta_wall", primary=contrasts == 1, stage=stage)
        return judged([examine(CANDIDATE, BASELINE, *sides(ratio), asked)] * contrasts)[0].verdict

    alone = next(ratio for ratio in np.arange(1.1, 2.0, 0.01) if verdict(float(ratio), 1) == "slower")
    early = Stage(1, 3, 12, 0.0056, 0.0056)
    assert verdict(float(alone), 10) == verdict(float(alone), 1, early) == "inconclusive"
    assert verdict(3.0, 10) == verdict(3.0, 1, early) == "slower"


def test_one_training_crosses_at_one_sample_so_only_its_speed_is_unknown() -> None:
    """Equal final weights: the ratio of times is known however coarse the grid."""
    sides = []
    for cell, slow in ((CANDIDATE, 1.0), (BASELINE, 1.001)):
        trials = [seen(cell, k, 7.0 + k % 3, 3.3) for k in range(10)]
        noise = [slow * (1 + 0.002 * ((k * 7 + (cell is BASELINE)) % 5 - 2)) for k in range(10)]
        sides.append([item.model_copy(update={
            "tta_wall": factor * (item.tta_wall or 0), "hashes": {**item.hashes, "final_weights": f"f{item.repeat}"},
            "bracket": item.bracket and item.bracket.model_copy(update={
                "miss_wall_seconds": factor * item.bracket.miss_wall_seconds,
                "hit_wall_seconds": factor * item.bracket.hit_wall_seconds}),
        }) for item, factor in zip(trials, noise, strict=True)])
    assert contrast(CANDIDATE, BASELINE, *sides, "tta_wall", primary=True).verdict == "same"
    other = [item.model_copy(update={"hashes": {**item.hashes, "final_weights": "g"}}) for item in sides[0]]
    assert contrast(CANDIDATE, BASELINE, other, sides[1], "tta_wall", primary=True).verdict == "inconclusive"


def test_without_brackets_nothing_is_the_same() -> None:
    bare = [[result(cell, k, 10.0 + 0.01 * ((k + shift) % 3), bracket=None) for k in range(10)]
            for cell, shift in ((CANDIDATE, 0), (BASELINE, 1))]
    found = contrast(CANDIDATE, BASELINE, *bare, "tta_wall", primary=True)
    assert found.verdict == "inconclusive"
    assert "does not say between which evaluations" in found.because


def test_trials_that_all_hit_at_their_first_evaluation_say_so() -> None:
    found = both(0.5, (30.0, 30.0), 8, 1, "tta_wall")
    assert any("all 8 trials reached the target at their first evaluation" in text for text in found.cautions)
    assert found.verdict != "same"


def test_different_grids_are_reported_with_their_effect() -> None:
    text = unlike_grids([seen(CANDIDATE, 0, 6.0, 0.64)], [seen(BASELINE, 0, 6.0, 0.704)])
    assert "every 640 samples against every 704" in text
    assert "10.0 % of the time against up to 11.1 %" in text


def test_like_grids_and_unknown_grids_are_silent() -> None:
    bare = Result(trial_id="t", cell_id="c", repeat=0, attempt=1, status="ok", tta_wall=1.0)
    assert unlike_grids([seen(CANDIDATE, 0, 6.0, 0.64)], [seen(BASELINE, 0, 9.0, 0.64)]) == ""
    assert unlike_grids([bare], [seen(BASELINE, 0, 6.0, 0.64)]) == ""
    assert unlike_grids([], []) == ""


def test_steps_that_are_stated_are_no_mere_numbers() -> None:
    slow, fast = (numbered(seen(cell, 0, 6.0, step)) for cell, step in ((BASELINE, 0.1), (CANDIDATE, 0.05)))
    assert "no step of an evaluation is stated" in unlike_grids([fast], [slow])
    stated = [[item.model_copy(update={"curve_in_steps": True})] for item in (fast, slow)]
    assert unlike_grids(*stated) == ""


def test_an_open_ended_design_shares_the_error_of_its_brackets(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    of_ratio = Grid.interval
    monkeypatch.setattr(Grid, "interval", lambda grid, level: (asked.append(level), of_ratio(grid, level))[1])
    rng = np.random.default_rng(1)
    sides = [[seen(cell, k, 10 * value, 0.5) for k, value in enumerate(rng.lognormal(0, 0.001, 30))]
             for cell in (CANDIDATE, BASELINE)]
    judged([examine(CANDIDATE, BASELINE, *sides, ComparisonRequest(
        metric="tta_wall", primary=True, stage=Stage(30, 194, 30, anytime=True)))])
    assert 1 - asked[0] == pytest.approx(2 * 0.05 / 194)
