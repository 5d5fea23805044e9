"""Brackets of the evaluation grid, and how much a design can show: by hand, by simulation, against statsmodels."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import gammaincinv, ndtri, stdtr

from repro.stats import (
    bracket_bias,
    detectable_ratio,
    equivalence_power,
    equivalent_pairs,
    paired_power,
    paired_ratio,
    pairs_needed,
    range_interval,
    sign_flip,
    tost,
)

CALM = settings(max_examples=40, deadline=None, derandomize=True, database=None)
BRACKET = st.tuples(st.floats(1, 100), st.floats(0.01, 5)).map(lambda pair: (pair[0], pair[0] + pair[1]))
PAIRED = st.lists(st.tuples(BRACKET, BRACKET), min_size=3, max_size=8)


# ---- the evaluation grid


def test_the_bias_of_first_hits_by_hand() -> None:
    assert bracket_bias([(8, 10), (9, 10)]) == pytest.approx(math.sqrt(10 / 8 * 10 / 9) - 1)
    assert bracket_bias([(0, 10), (9, 10)]) == math.inf


def log_ranges(ours: list[tuple[float, float]], theirs: list[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(math.log(low / other_high), math.log(high / other_low))
            for (low, high), (other_low, other_high) in zip(ours, theirs, strict=True)]


def test_ranges_without_an_interval_are_refused() -> None:
    for wrong in ([(0.1, 0.2)], [(-math.inf, 0.2), (0.1, 0.2)]):
        with pytest.raises(ValueError, match="two pairs, each with a finite range"):
            range_interval(wrong)


@CALM
@given(PAIRED)
def test_the_t_interval_of_every_crossing_in_the_brackets_is_in_the_interval(
    pairs: list[tuple[tuple[float, float], tuple[float, float]]]
) -> None:
    ours, theirs = ([pair[side] for pair in pairs] for side in (0, 1))
    ratio, interval = range_interval(log_ranges(ours, theirs))
    generator = np.random.default_rng(4)
    for _ in range(20):
        share = generator.choice([0.0, 1.0, generator.random()], (2, len(pairs)))
        a = [low + at * (high - low) for (low, high), at in zip(ours, share[0], strict=True)]
        b = [low + at * (high - low) for (low, high), at in zip(theirs, share[1], strict=True)]
        inner = paired_ratio(a, b)[1]
        assert interval.low * (1 - 1e-9) <= inner.low and inner.high <= interval.high * (1 + 1e-9)
    back, mirrored = range_interval(log_ranges(theirs, ours))
    assert (1 / back, 1 / mirrored.high, 1 / mirrored.low) == pytest.approx((ratio, interval.low, interval.high))


@pytest.mark.parametrize("brackets", [[], [(2, 1)], [(1, 1)], [(-1, 1)], [(0, math.nan)], [(0, math.inf)]])
def test_invalid_brackets_are_refused(brackets: list[tuple[float, float]]) -> None:
    with pytest.raises(ValueError, match="bracket"):
        bracket_bias(brackets)


# ---- power


@pytest.mark.parametrize(("effect", "pairs", "alpha"), [(0.8, 21, 0.05), (0.3, 40, 0.05), (0.5, 30, 0.01)])
def test_the_power_of_the_t_test_agrees_with_statsmodels(effect: float, pairs: int, alpha: float) -> None:
    from statsmodels.stats.power import TTestPower

    theirs = TTestPower().power(effect, pairs, alpha)
    assert paired_power(0.1, math.exp(0.1 * effect), pairs, alpha) == pytest.approx(theirs, abs=1e-4)
    assert paired_power(0.1, math.exp(-0.1 * effect), pairs, alpha) == pytest.approx(theirs, abs=1e-4)


def test_below_the_exact_floor_there_is_no_power() -> None:
    assert [paired_power(0.01, 2.0, pairs) for pairs in (1, 2, 5)] == [0, 0, 0]
    assert detectable_ratio(0.01, 5) is None
    assert detectable_ratio(0.01, 6) is not None
    assert detectable_ratio(0.01, 7, alpha=0.01) is None


def test_at_six_pairs_all_six_must_agree() -> None:
    # P(six of one side) = Phi(e)^6; the t test, which must agree, takes a little more away
    found = detectable_ratio(0.1, 6)
    assert found is not None
    assert ndtri(0.8 ** (1 / 6)) < math.log(found) / 0.1 < ndtri(0.815 ** (1 / 6))


def simulated_power(effect: float, pairs: int, alpha: float, draws: int = 4000) -> float:
    """Return how often both tests detect an effect in normal logs."""
    logs = np.random.default_rng(pairs).standard_normal((draws, pairs)) + effect
    t = np.sqrt(pairs) * logs.mean(axis=1) / logs.std(axis=1, ddof=1)
    seen = 2 * stdtr(pairs - 1, -np.abs(t)) <= alpha
    return float(np.mean([by_t and sign_flip(row) <= alpha for by_t, row in zip(seen, logs, strict=True)]))


@pytest.mark.slow
@pytest.mark.parametrize(("pairs", "alpha"), [
    (6, 0.05), (7, 0.05), (8, 0.05), (10, 0.05), (12, 0.05), (8, 0.01), (10, 0.0125)])
def test_the_promised_power_is_that_of_both_tests_together(pairs: int, alpha: float) -> None:
    ratio = detectable_ratio(0.1, pairs, alpha)
    assert ratio is not None
    assert simulated_power(math.log(ratio) / 0.1, pairs, alpha) == pytest.approx(0.8, abs=0.02)


def _found_from_pilots(pilot: int, sd: float, ratio: float) -> tuple[float, int]:
    """Return how often the ratio is found in experiments planned from pilots, and the median of their pairs.

    Over 25 equally likely pilots of normal logs; what the planned pairs find is computed with the true spread.
    """
    shares = 2 * gammaincinv((pilot - 1) / 2, (np.arange(25) + 0.5) / 25) / (pilot - 1)
    planned = [pairs_needed(sd * math.sqrt(share), ratio, pilot=pilot) for share in shares]
    return float(np.mean([paired_power(sd, ratio, pairs) for pairs in planned])), int(np.median(planned))


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.03, 0.1, 0.3])
@pytest.mark.parametrize("pilot", [3, 6, 10, 20])
def test_a_plan_from_a_pilot_finds_its_effect_as_often_as_promised(pilot: int, spread: float) -> None:
    found, pairs = _found_from_pilots(pilot, spread * math.sqrt(2), 1.05)
    print(f"pilot of {pilot} pairs, CV {spread:.0%}: found in {found:.3f}, median of {pairs} pairs")
    assert 0.78 <= found <= 0.90


def test_the_spread_of_few_pairs_costs_pairs() -> None:
    known, *more = [pairs_needed(0.1, 1.1, pilot=pilot) for pilot in (None, 20, 6, 3)]
    assert known < more[0] < more[1] < more[2]
    assert paired_power(0.1, 1.1, more[2], pilot=3) >= 0.8 > paired_power(0.1, 1.1, more[2] - 1, pilot=3)
    with pytest.raises(ValueError, match="a pilot of 1 pairs has no spread"):
        pairs_needed(0.1, 1.1, pilot=1)


@pytest.mark.parametrize("pilot", [3, 10])
def test_the_power_of_equivalence_is_averaged_over_the_pilots_spread(pilot: int) -> None:
    generator = np.random.default_rng(pilot)
    spreads = 0.03 * np.sqrt((pilot - 1) / generator.chisquare(pilot - 1, 300))
    expected = np.mean([equivalence_power(float(sd), 1.0, 12, 0.05) for sd in spreads])
    assert equivalence_power(0.03, 1.0, 12, 0.05, pilot=pilot) == pytest.approx(expected, abs=0.05)


def test_pairs_needed_is_the_least_that_has_the_power() -> None:
    for sd, ratio, contrasts in ((0.05, 1.05, 1), (0.1, 0.8, 1), (0.1, 1.1, 6), (0.001, 1.5, 6)):
        found = pairs_needed(sd, ratio, contrasts=contrasts)
        assert paired_power(sd, ratio, found, 0.05 / contrasts) >= 0.8
        assert paired_power(sd, ratio, found - 1, 0.05 / contrasts) < 0.8
    assert (pairs_needed(0.001, 1.5), pairs_needed(0.001, 1.5, contrasts=6)) == (6, 8)  # the floor
    assert pairs_needed(0.05, 1.05) == pairs_needed(0.05, 1 / 1.05)
    with pytest.raises(ValueError, match="equivalence test"):
        pairs_needed(0.1, 1.0)
    with pytest.raises(ValueError, match="more than 10,000 pairs"):
        pairs_needed(1.0, 1.001)


@pytest.mark.parametrize(("sd", "ratio", "pairs"), [
    (0.03, 1.0, 5), (0.03, 1.0, 6), (0.05, 1.0, 12), (0.05, 1.02, 20), (0.1, 1.0, 10)])
def test_the_power_of_equivalence_agrees_with_simulation(sd: float, ratio: float, pairs: int) -> None:
    generator = np.random.default_rng(pairs)
    logs = generator.normal(math.log(ratio), sd, (4000, pairs))
    found = np.mean([tost(row, 0.05).equivalent and equivalent_pairs(row.tolist(), 0.05).equivalent for row in logs])
    assert equivalence_power(sd, ratio, pairs, 0.05) == pytest.approx(found, abs=0.035)


def test_sameness_has_no_power_where_its_sign_flip_test_cannot_reject() -> None:
    assert [equivalence_power(0.001, 1.0, pairs, 0.05) for pairs in (2, 4)] == [0, 0]
    assert equivalence_power(0.001, 1.0, 5, 0.05) > 0.99
    assert equivalence_power(0.001, 1.0, 5, 0.05, alpha=0.05 / 3) == 0  # five pairs of three contrasts


@pytest.mark.parametrize(("pairs", "alpha"), [(15, 0.0025), (16, 0.0025)])
def test_at_the_levels_of_holm_the_sign_flip_test_takes_power_away(pairs: int, alpha: float) -> None:
    ratio = detectable_ratio(0.1, pairs, alpha)
    assert ratio is not None
    assert simulated_power(math.log(ratio) / 0.1, pairs, alpha) == pytest.approx(0.8, abs=0.02)


@pytest.mark.parametrize(("sd", "ratio", "alpha", "problem"), [
    (0, 1.1, 0.05, "spread"), (math.nan, 1.1, 0.05, "spread"), (0.1, 0, 0.05, "ratio"), (0.1, math.inf, 0.05, "ratio"),
    (0.1, 1.1, 0, "alpha"),
])
def test_invalid_designs_are_refused(sd: float, ratio: float, alpha: float, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        paired_power(sd, ratio, 10, alpha)
    with pytest.raises(ValueError, match="power"):
        detectable_ratio(0.1, 10, power=0.01)
