"""Medians with misses, profiles of many draws and their percentile intervals: by hand, and by plain loops."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

from repro.stats import (
    censored_median,
    geometric_mean,
    mean_ratios,
    percentile_interval,
    performance_profile,
    profile_score,
    profile_scores,
    profiles,
    ratios_to_best,
    resampled_medians,
)

INF = math.inf


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


def test_the_area_under_a_profile_by_hand() -> None:
    times = {"a": {"x": 1.0, "y": 4.0, "z": None}, "b": {"x": 2.0, "y": 2.0, "z": 5.0}, "c": {"w": None}}
    # a: ratios 1, 2, infinite; b: 2, 1, 1; four workloads, tau from 1 to 4
    found = profile_score(times, 4)
    assert found == {"a": pytest.approx((3 + 2) / 12), "b": pytest.approx((2 + 3 + 3) / 12), "c": 0}
    assert profile_score({"a": {"x": 5.0, "y": 1.0}, "b": {"x": None, "y": 9.0}}, 4) == {"a": 1, "b": 0}
    for wrong in (1.0, 0.5, INF, math.nan):
        with pytest.raises(ValueError, match="tau_max"):
            profile_score(times, wrong)


def test_the_area_is_the_integral_of_the_profile() -> None:
    generator = np.random.default_rng(5)
    times: dict[str, dict[str, float | None]] = {
        name: {str(index): None if value > 8 else float(value)
               for index, value in enumerate(generator.uniform(1, 9, 7))} for name in "abc"}
    taus = np.linspace(1, 4, 30_001)
    found = profile_score(times, 4)
    for name, shares in performance_profile(times, taus.tolist()).items():
        assert found[name] == pytest.approx(np.trapezoid(shares, taus) / 3, abs=2e-4)


def test_draws_give_what_single_profiles_give() -> None:
    generator = np.random.default_rng(7)
    times = generator.uniform(1, 5, (3, 4, 40))
    times[times > 4.2] = INF
    times[0, 2], times[1, 2], times[2, 2] = INF, INF, INF
    taus = [1.0, 1.3, 2.0, 4.0]
    ratios = ratios_to_best(times)
    shares, areas, means = profiles(ratios, taus), profile_scores(ratios, 4), mean_ratios(times, 0)
    for draw in range(40):
        named = {str(system): {str(place): None if math.isinf(value) else float(value)
                               for place, value in enumerate(times[system, :, draw])} for system in range(3)}
        wanted, area = performance_profile(named, taus), profile_score(named, 4)
        for system in range(3):
            assert tuple(shares[system, :, draw]) == wanted[str(system)]
            assert areas[system, draw] == pytest.approx(area[str(system)])
    assert np.isnan(means).all()  # the reference never solves the third workload


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
