"""Mean time to a horizon: by hand, against lifelines, and what it refuses."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.stats import restricted_mean, restricted_ratio

CALM = settings(max_examples=40, deadline=None, derandomize=True, database=None)
RUNS = st.lists(st.floats(0.5, 12).map(lambda time: round(time, 3)), min_size=3, max_size=15)


def cut(times: list[float], horizon: float = 10.0) -> tuple[list[float], list[bool]]:
    return [min(time, horizon) for time in times], [time <= horizon for time in times]


def varied(times: list[float]) -> bool:
    return len({time for time in times if time <= 10}) > 1


def test_a_restricted_mean_by_hand() -> None:
    value, interval = restricted_mean([2, 4, 10], [True, True, False], 10)
    assert value == pytest.approx((2 + 4 + 10) / 3)
    assert 0 < interval.low < value < interval.high <= 10 and interval.level == 0.95


@CALM
@given(RUNS.filter(varied))
def test_the_mean_agrees_with_lifelines(times: list[float]) -> None:
    from lifelines import KaplanMeierFitter
    from lifelines.utils import restricted_mean_survival_time

    outcomes = cut(times)
    value = restricted_mean(*outcomes, 10)[0]
    assert value == pytest.approx(np.mean(np.minimum(times, 10)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert restricted_mean_survival_time(KaplanMeierFitter().fit(*outcomes), 10) == pytest.approx(value)


@CALM
@given(RUNS.filter(varied), RUNS.filter(varied), st.floats(0.01, 100))
def test_swapping_inverts_units_cancel_and_order_does_not_matter(
    ours: list[float], theirs: list[float], unit: float
) -> None:
    ratio, interval = restricted_ratio(cut(ours), cut(theirs), 10)
    back, mirrored = restricted_ratio(cut(theirs[::-1]), cut(ours[::-1]), 10)
    assert interval.low <= ratio <= interval.high
    assert (back, mirrored.low, mirrored.high) == pytest.approx((1 / ratio, 1 / interval.high, 1 / interval.low))
    scaled = [([time * unit for time in cell[0]], cell[1]) for cell in (cut(ours), cut(theirs))]
    other, moved = restricted_ratio(scaled[0], scaled[1], 10 * unit)
    assert (other, moved.low, moved.high) == pytest.approx((ratio, interval.low, interval.high))


def test_more_runs_narrow_the_interval_and_a_higher_level_widens_it() -> None:
    few, many = ([1, 2, 3, 10], [True, True, True, False]), ([1, 2, 3, 10] * 5, [True, True, True, False] * 5)
    width = [found.high - found.low for found in (restricted_mean(*few, 10)[1], restricted_mean(*many, 10)[1])]
    assert width[1] < width[0] / 1.5
    assert restricted_mean(*few, 10, 0.99)[1].high > restricted_mean(*few, 10)[1].high


@pytest.mark.parametrize(("times", "hits", "horizon", "problem"), [
    ([1, 2, 3], [True, True, False], 5, "less than the horizon of 5; .* at most 3"),
    ([9, 9], [False, False], 9, r"0 run\(s\) reached"), ([1, 9], [True, False], 9, r"1 run\(s\) reached"),
    ([2, 2, 9], [True, True, False], 9, "values that differ"), ([1, 2], [True, True], 0, "positive finite time"),
    ([1, 2], [True, True], math.inf, "positive finite time"), ([1, math.nan], [True, True], 5, "finite"),
])
def test_samples_without_a_restricted_mean_are_refused(
    times: list[float], hits: list[bool], horizon: float, problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        restricted_mean(times, hits, horizon)
