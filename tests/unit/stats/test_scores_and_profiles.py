"""MLPerf's score, profiles, dominance, trends, marks and spreads: by hand and by their defining properties."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from repro.stats import (
    coefficient_of_variation,
    lane_trend,
    order_trend,
    outlier_marks,
    probability_less,
)

CALM = settings(max_examples=40, deadline=None, derandomize=True, database=None)
SAMPLE = st.lists(st.floats(0.1, 100).map(lambda x: round(x, 2)), min_size=2, max_size=10)


# ---- how often one is quicker


@CALM
@given(SAMPLE, SAMPLE, st.randoms())
def test_probability_less_counts_pairs_and_mirrors(a: list[float], b: list[float], by) -> None:
    found, interval = probability_less(a, b)
    counted = [1.0 if x < y else 0.5 if x == y else 0.0 for x, y in itertools.product(a, b)]
    assert found == pytest.approx(np.mean(counted))
    assert 0 <= interval.low <= found <= interval.high <= 1
    back, mirrored = probability_less(by.sample(b, len(b)), a)
    assert (1 - back, 1 - mirrored.high, 1 - mirrored.low) == pytest.approx((found, interval.low, interval.high))


def test_probability_less_of_a_clean_separation_keeps_a_width() -> None:
    found, interval = probability_less([1, 2, 3, 4, 5], [6, 7, 8, 9, 10])
    assert found == 1 and interval.high == 1
    # (1 - theta)^2 = z^2 theta (1 - theta) (1 + 4 ((1 - theta) / (2 - theta) + theta / (1 + theta))) / 25
    theta, z = interval.low, 1.959963985
    shape = 1 + 4 * ((1 - theta) / (2 - theta) + theta / (1 + theta))
    assert (1 - theta) ** 2 == pytest.approx(z**2 * theta * (1 - theta) * shape / 25)
    assert 0.5 < theta < 0.8
    with pytest.raises(ValueError, match="at least 2"):
        probability_less([1], [1, 2])


# ---- order, marks, spread


def test_a_trend_by_hand_and_against_scipy() -> None:
    assert order_trend([1, 2, 3, 4, 5], [1, 2, 3, 4, 5]) == pytest.approx((1, 2 / 120))
    assert order_trend([1, 2, 3, 4, 5], [5, 4, 3, 2, 1]) == pytest.approx((-1, 2 / 120))
    # one of the six pairs of four is out of order: tau = 4/6; 8 of 24 orders are as far
    assert order_trend([1, 2, 3, 4], [1, 2, 4, 3]) == (pytest.approx(4 / 6), pytest.approx(8 / 24))
    values = np.random.default_rng(2).normal(size=12)
    assert order_trend(range(12), values)[1] == pytest.approx(scipy_stats.kendalltau(range(12), values).pvalue)


def test_a_trend_with_ties_counts_all_orders() -> None:
    tau, p = order_trend([1, 2, 3, 4, 5], [1, 1, 2, 2, 3])
    sums = [sum(np.sign(later - former) for former, later in itertools.combinations(order, 2))
            for order in itertools.permutations([1, 1, 2, 2, 3])]
    assert p == pytest.approx(np.mean(np.abs(sums) >= max(sums)))
    assert tau == pytest.approx(8 / math.sqrt(10 * 8))
    assert order_trend([1, 2, 3, 4, 5], [1, 1 + 1e-15, 2, 2, 3]) == (tau, p)  # rounding is no order


def test_a_trend_within_lanes_is_that_of_one_lane_and_exact_over_several() -> None:
    values = np.random.default_rng(3).normal(size=9).tolist()
    assert lane_trend([values]) == order_trend(range(9), values)
    lanes = [[0.3, 0.1, 0.2], [5.0, 5.2, 5.1, 5.3]]
    tau, p = lane_trend(lanes)
    scores = [sum(np.sign(b - a) for lane in (one, other) for a, b in itertools.combinations(lane, 2))
              for one in itertools.permutations(lanes[0]) for other in itertools.permutations(lanes[1])]
    seen = sum(np.sign(b - a) for lane in lanes for a, b in itertools.combinations(lane, 2))
    assert tau == pytest.approx(seen / 9)
    assert p == pytest.approx(np.mean(np.abs(scores) >= abs(seen)))
    assert lane_trend([*lanes, [7.0]]) == (tau, p), "a lane of one value says nothing"
    assert lane_trend([[1, 2, 3, 4], [11, 12, 13, 14]])[0] == 1


@pytest.mark.slow
def test_a_level_of_lanes_is_no_trend() -> None:
    """Of lanes of very different level, no more than 5 % are called a trend; with ties as well."""
    generator = np.random.default_rng(5)
    for digits in (9, 0):
        found = [lane_trend([np.round(generator.normal(10 * lane, 1, 5), digits).tolist() for lane in range(4)])[1]
                 for _ in range(1000)]
        assert np.mean(np.array(found) <= 0.05) <= 0.05 + 3.3 * math.sqrt(0.05 * 0.95 / 1000)
        assert np.mean(np.array(found) <= 0.05) > 0.02


@pytest.mark.slow
def test_the_exact_trend_rejects_at_its_level_when_nothing_drifts() -> None:
    generator = np.random.default_rng(8)
    for count in (5, 8, 20):
        rejected = np.mean([order_trend(range(count), generator.normal(size=count))[1] <= 0.05 for _ in range(2000)])
        assert rejected <= 0.062


@pytest.mark.parametrize(("order", "logs", "problem"), [
    ([1, 2, 3], [1, 2, 3], "at least 4"), ([1, 2, 3, 4], [1, 2, 3], "one length"),
    ([1, 2, 3, 4], [2, 2, 2, 2], "differ"), ([1, 1, 1, 1], [1, 2, 3, 4], "differ"),
    ([1, 2, 3, 4], [1, 2, 3, math.nan], "finite"),
])
def test_invalid_trends_are_refused(order: list[float], logs: list[float], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        order_trend(order, logs)


def test_outliers_are_marked_in_place_and_units_do_not_matter() -> None:
    values = [10, 11, 30, 9, 10.5, 9.5]
    assert outlier_marks(values) == [False, False, True, False, False, False]
    assert outlier_marks([60 * value for value in values]) == outlier_marks(values)
    assert outlier_marks([1 / value for value in values]) == outlier_marks(values)
    assert outlier_marks([1, 1, 1, 1, 1, 1, 2]) == [False] * 6 + [True]  # MAD 0: mean absolute deviation replaces it
    assert outlier_marks([1, 1, 1, 50]) == [False] * 4
    assert outlier_marks([2.0] * 8) == [False] * 8
    with pytest.raises(ValueError, match="positive"):
        outlier_marks([1, 2, 3, 4, 0])


def test_the_coefficient_of_variation_by_hand() -> None:
    assert coefficient_of_variation([1, 2, 3]) == pytest.approx(0.5)
    assert coefficient_of_variation([2, 2]) == 0
    for wrong in ([1], [1, -1], [1, math.nan]):
        with pytest.raises(ValueError, match=r"at least 2|positive|finite"):
            coefficient_of_variation(wrong)
