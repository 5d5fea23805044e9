"""Medians with misses, profiles of many draws and their percentile intervals: by hand, and by plain loops."""

from __future__ import annotations

import math
import statistics
from statistics import geometric_mean

import numpy as np
import pytest

from repro.stats import (
    mean_ratios,
    percentile_interval,
    profile_scores,
    profiles,
    ratios_to_best,
    resampled_medians,
)

INF = math.inf
TIMES = np.array([[1.0, 4.0, INF, INF], [2.0, 2.0, 5.0, INF], [INF] * 4])[..., None]
"""Three systems on four workloads, the last of which none solves."""


def censored_median(outcomes: list[float | None]) -> float:
    return float(resampled_medians(outcomes, np.arange(len(outcomes))[None, :])[0])


@pytest.mark.parametrize(("outcomes", "wanted"), [
    ([3.0, 1.0, 2.0], 2.0), ([3.0, 1.0, None], 3.0), ([3.0, None, None], INF), ([4.0, 1.0, 2.0, 3.0], 2.5),
    ([4.0, 1.0, 2.0, None], 3.0), ([4.0, 1.0, None, None], INF), ([None], INF), ([7.0], 7.0),
])
def test_a_median_is_finite_only_if_more_than_half_reached(outcomes: list[float | None], wanted: float) -> None:
    assert censored_median(outcomes) == wanted


def test_medians_without_runs_or_with_wrong_times_are_refused() -> None:
    for wrong in ([], [1.0, -1.0], [0.0], [math.nan], [INF]):
        with pytest.raises(ValueError, match="positive finite"):
            censored_median(wrong)


def test_resampled_medians_are_those_of_a_loop() -> None:
    generator = np.random.default_rng(3)
    for count in (1, 2, 5, 6):
        outcomes = [None if value > 1.6 else float(value) for value in generator.uniform(1, 2, count)]
        picks = generator.integers(0, count, (50, count))
        padded = [INF if value is None else value for value in outcomes]
        wanted = [statistics.median(padded[index] for index in row) for row in picks]
        assert resampled_medians(outcomes, picks).tolist() == wanted


def test_a_performance_profile_and_its_area_by_hand() -> None:
    ratios = ratios_to_best(TIMES)  # 1, 2, infinite; 2, 1, 1
    found = profiles(ratios, [1, 1.9, 2, 100])[:, :, 0].tolist()
    assert found == [[0.25, 0.25, 0.5, 0.5], [0.5, 0.5, 0.75, 0.75], [0, 0, 0, 0]]
    assert profile_scores(ratios, 4)[:, 0].tolist() == pytest.approx([(3 + 2) / 12, (2 + 3 + 3) / 12, 0])
    for wrong in (1.0, 0.5, INF, math.nan):
        with pytest.raises(ValueError, match="tau_max"):
            profile_scores(ratios, wrong)


def test_the_area_is_the_integral_of_the_profile() -> None:
    times = np.random.default_rng(5).uniform(1, 9, (3, 7, 2))
    ratios, taus = ratios_to_best(np.where(times > 8, INF, times)), np.linspace(1, 4, 3001)
    areas = np.trapezoid(profiles(ratios, taus.tolist()), taus, axis=1) / 3
    assert profile_scores(ratios, 4) == pytest.approx(areas, abs=2e-3)


def test_mean_ratios_are_geometric_means() -> None:
    times = np.array([[[2.0, 1.0], [3.0, INF]], [[4.0, 2.0], [3.0, 1.0]], [[INF, 5.0], [1.0, 5.0]]])
    found = mean_ratios(times, 1)
    assert found[0, 0] == pytest.approx(geometric_mean([0.5, 1.0]))
    assert found[:, 1].tolist() == [INF, 1.0, pytest.approx(geometric_mean([2.5, 5.0]))]
    assert found[2, 0] == INF


def test_percentile_intervals_are_order_statistics_and_may_be_infinite() -> None:
    found = percentile_interval(np.arange(1.0, 1001.0))
    assert (found.low, found.high) == (26, 975)
    assert percentile_interval(np.array([1.0] * 96 + [INF] * 4)).high == INF
    assert percentile_interval(np.array([1.0] * 98 + [INF] * 2)).high == 1
    assert percentile_interval(np.array([2.0])).low == 2
    for wrong in (np.array([]), np.array([1.0, math.nan])):
        with pytest.raises(ValueError, match="numbers"):
            percentile_interval(wrong)


def test_the_interval_of_a_mean_ratio_covers() -> None:
    """Two equal systems, three workloads, six seeds: 1 lies in at least 92 of 100 intervals."""
    generator, hits = np.random.default_rng(11), 0
    for _ in range(150):
        runs = generator.lognormal(0, 0.1, (2, 3, 6))
        draws = np.stack([np.stack([resampled_medians(cell.tolist(), generator.integers(0, 6, (400, 6)))
                                    for cell in system]) for system in runs])
        found = percentile_interval(mean_ratios(draws, 0)[1])
        hits += found.low <= 1 <= found.high
    assert hits / 150 >= 0.92
