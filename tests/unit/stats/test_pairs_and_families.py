"""Tests of pairs, of two samples, of equivalence and of families, against scipy, statsmodels and by hand."""

from __future__ import annotations

import math
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from repro.stats import (
    holm,
    mean_interval,
    median_interval,
    paired_p,
    pairs_to_survive,
    sign_flip,
    tost,
    tost_welch,
    welch_p,
    welch_ratio,
    wilson,
)

CALM = settings(max_examples=40, deadline=None, derandomize=True, database=None)
TIME = st.floats(0.1, 1e3).map(lambda time: round(time, 4))
SAMPLE = st.lists(TIME, min_size=2, max_size=12).filter(lambda times: max(times) > 1.01 * min(times))
PAIRS = st.lists(st.tuples(TIME, TIME), min_size=3, max_size=12).filter(
    lambda pairs: np.std([math.log(a / b) for a, b in pairs]) > 1e-3)


# ---- two samples


@CALM
@given(SAMPLE, SAMPLE)
def test_welch_agrees_with_scipy(ours: list[float], theirs: list[float]) -> None:
    found = scipy_stats.ttest_ind(np.log(ours), np.log(theirs), equal_var=False)
    bounds = found.confidence_interval(0.95)
    ratio, interval = welch_ratio(ours, theirs)
    assert math.log(ratio) == pytest.approx(np.mean(np.log(ours)) - np.mean(np.log(theirs)), abs=1e-9)
    assert (math.log(interval.low), math.log(interval.high)) == pytest.approx((bounds.low, bounds.high), abs=1e-7)
    assert welch_p(ours, theirs) == pytest.approx(found.pvalue, abs=1e-9)


@CALM
@given(SAMPLE, SAMPLE, st.floats(0.01, 100), st.randoms())
def test_welch_inverts_cancels_units_and_forgets_order(ours: list[float], theirs: list[float], unit: float, by) -> None:
    ratio, interval = welch_ratio(ours, theirs)
    moved, mixed = welch_ratio([unit * x for x in ours], [unit * x for x in by.sample(theirs, len(theirs))])
    assert (moved, mixed.low, mixed.high) == pytest.approx((ratio, interval.low, interval.high), rel=1e-6)
    back, mirrored = welch_ratio(theirs, ours)
    assert (1 / back, 1 / mirrored.high, 1 / mirrored.low) == pytest.approx((ratio, interval.low, interval.high))
    assert welch_p(theirs, ours) == pytest.approx(welch_p(ours, theirs))


def test_welch_by_hand() -> None:
    # logs 0, 2 and 0, 0: difference 1, error sqrt(2 / 2) = 1, one degree of freedom: 12.7062
    ratio, interval = welch_ratio([1, math.exp(2)], [1, 1])
    assert ratio == pytest.approx(math.e)
    assert math.log(interval.high) == pytest.approx(1 + 12.706204736)
    assert welch_p([1, math.exp(2)], [1, 1]) == pytest.approx(0.5)  # t = 1 with one degree: Cauchy


@pytest.mark.parametrize(("ours", "theirs", "problem"), [
    ([1], [1, 2], "at least 2"), ([1, 1], [2, 2], "without a spread"), ([1, 0], [1, 2], "positive"),
    ([1, math.nan], [1, 2], "finite"), ([1, math.inf], [1, 2], "finite"),
])
def test_welch_refuses_invalid_samples(ours: list[float], theirs: list[float], problem: str) -> None:
    for refuse in (welch_ratio, welch_p):
        with pytest.raises(ValueError, match=problem):
            refuse(ours, theirs)
    with pytest.raises(ValueError, match=problem):
        tost_welch(ours, theirs, 0.05)


# ---- pairs


@CALM
@given(PAIRS)
def test_the_t_test_of_pairs_agrees_with_scipy(pairs: list[tuple[float, float]]) -> None:
    above, below = (list(side) for side in zip(*pairs, strict=True))
    theirs = scipy_stats.ttest_rel(np.log(above), np.log(below)).pvalue
    assert paired_p(above, below) == pytest.approx(theirs, abs=1e-9)


def test_pairs_of_one_ratio_have_no_p() -> None:
    with pytest.raises(ValueError, match="without a spread it would claim certainty"):
        paired_p([2, 4, 6], [1, 2, 3])


@CALM
@given(st.lists(st.floats(-3, 3).map(lambda x: round(x, 3)).filter(bool), min_size=3, max_size=9))
def test_sign_flip_agrees_with_scipy(logs: list[float]) -> None:
    theirs = scipy_stats.permutation_test(
        (np.array(logs),), lambda x, axis: np.abs(np.round(np.sum(x, axis=axis), 9)), permutation_type="samples",
        vectorized=True, n_resamples=np.inf, alternative="greater")
    assert sign_flip(logs) == pytest.approx(theirs.pvalue, abs=1e-12)


def test_sign_flip_treats_rounding_as_ties() -> None:
    assert sign_flip([0.1, 0.2, -0.3]) == 1.0  # the sum is 5e-17, not 0
    with pytest.raises(ValueError, match="finite"):
        sign_flip([math.nan])


def test_pairs_that_survive_holm() -> None:
    assert [pairs_to_survive(contrasts) for contrasts in (1, 2, 3, 6, 7, 100)] == [6, 7, 7, 8, 9, 12]
    assert pairs_to_survive(1, 0.01) == 8
    for contrasts, alpha in ((0, 0.05), (1, 0.0), (1, 1.0)):
        with pytest.raises(ValueError, match="at least one contrast"):
            pairs_to_survive(contrasts, alpha)


# ---- families


@CALM
@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_agrees_with_statsmodels(ps: list[float]) -> None:
    from statsmodels.stats.multitest import multipletests

    with patch("gc.collect"):  # which it calls every time, and which takes longer the more is loaded
        theirs = multipletests(ps, method="holm")[1]
    assert holm(ps) == pytest.approx(list(theirs), abs=1e-12)


def test_holm_by_hand_keeps_the_order_given() -> None:
    # sorted 0.01 x 4, 0.02 x 3, 0.03 x 2, 0.04 x 1, each at least the one before
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert (holm([]), holm([0.5]), holm([0.5, 0.9])) == ([], [0.5], [1.0, 1.0])
    for wrong in ([1.5], [-0.1], [math.nan]):
        with pytest.raises(ValueError, match="p values"):
            holm(wrong)


# ---- equivalence


@CALM
@given(PAIRS, st.floats(0.01, 0.9))
def test_tost_of_pairs_agrees_with_statsmodels(pairs: list[tuple[float, float]], margin: float) -> None:
    from statsmodels.stats.weightstats import ttost_paired

    above, below = (np.log(np.array(side)) for side in zip(*pairs, strict=True))
    edge = math.log1p(margin)
    found = tost(above - below, margin)
    assert found.p == pytest.approx(ttost_paired(above, below, -edge, edge)[0], abs=1e-9)
    inside = 1 / (1 + margin) < found.interval.low and found.interval.high < 1 + margin
    assert found.equivalent == (found.p <= 0.05) == inside


@CALM
@given(SAMPLE, SAMPLE, st.floats(0.01, 0.9))
def test_tost_of_two_samples_agrees_with_statsmodels(ours: list[float], theirs: list[float], margin: float) -> None:
    from statsmodels.stats.weightstats import ttost_ind

    edge = math.log1p(margin)
    expected = ttost_ind(np.log(ours), np.log(theirs), -edge, edge, usevar="unequal")[0]
    assert tost_welch(ours, theirs, margin).p == pytest.approx(expected, abs=1e-9)
    assert tost_welch(theirs, ours, margin).p == pytest.approx(expected, abs=1e-9)


def test_tost_by_hand() -> None:
    # logs -1, 0, 1: error 1 / sqrt 3; margin e - 1: edge 1, t = sqrt 3 with two degrees: p = (1 - sqrt(3 / 5)) / 2
    found = tost([-1, 0, 1], math.e - 1)
    assert found.p == pytest.approx((1 - math.sqrt(3 / 5)) / 2)
    assert found.interval.level == pytest.approx(0.9) and not found.equivalent
    assert math.log(found.interval.high) == pytest.approx(2.919985580 / math.sqrt(3))


@pytest.mark.parametrize(("logs", "margin", "alpha", "problem"), [
    ([0.1], 0.05, 0.05, "at least 2"), ([0.0, 0.0, 0.0], 0.05, 0.05, "values that differ"),
    ([0.1, math.nan], 0.05, 0.05, "finite"), ([0.1, 0.2], 0, 0.05, "margin"), ([0.1, 0.2], -0.1, 0.05, "margin"),
    ([0.1, 0.2], math.nan, 0.05, "margin"), ([0.1, 0.2], 0.05, 0.5, "alpha"),
])
def test_invalid_equivalence_tests_are_refused(logs: list[float], margin: float, alpha: float, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        tost(logs, margin, alpha)


# ---- one sample


@CALM
@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_proportions_agree_with_statsmodels(sample: tuple[int, int]) -> None:
    from statsmodels.stats.proportion import proportion_confint

    found = wilson(*sample)
    assert (found.low, found.high) == pytest.approx(proportion_confint(*sample, method="wilson"), abs=1e-9)


def test_the_mean_interval_agrees_with_scipy_and_refuses_samples_without_spread() -> None:
    values = [3.0, 4.0, 8.0]
    theirs = scipy_stats.ttest_1samp(values, 0).confidence_interval(0.9)
    found = mean_interval(values, 0.9)
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high))
    for wrong, problem in (([1.0], "at least 2"), ([2.0, 2.0], "values that differ"), ([1, math.inf], "finite")):
        with pytest.raises(ValueError, match=problem):
            mean_interval(wrong)
    with pytest.raises(ValueError, match="level"):
        mean_interval(values, 1.0)


def test_the_median_interval_refuses_values_that_are_not_finite() -> None:
    with pytest.raises(ValueError, match="finite"):
        median_interval([1, 2, math.nan, 3, 4, 5])
