"""Statistics against known values, brute force and simulation; every simulation has its seed."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from repro.stats import (
    Interval,
    log_ratios,
    median_interval,
    paired_ratio,
    sign_flip,
    sign_flip_floor,
    wilson,
)
from repro.stats.interval import from_log

CALM = settings(max_examples=50, deadline=None, derandomize=True, database=None)


# ---- the median of one cell


def test_fewer_than_six_values_give_no_interval_of_the_median() -> None:
    assert [median_interval(range(n)) for n in range(6)] == [None] * 6
    assert median_interval([3, 1, 2, 6, 5, 4]) == Interval(1, 6, 1 - 2 / 64)


@pytest.mark.parametrize("count", range(6, 60))
def test_the_median_interval_has_its_stated_coverage_and_is_the_narrowest_at_the_level(count: int) -> None:
    found = median_interval([float(number) for number in range(1, count + 1)])
    assert found is not None
    k = int(found.low)
    assert found.high == count + 1 - k

    def coverage(rank: int) -> float:
        return sum(math.comb(count, i) for i in range(rank, count - rank + 1)) / 2**count

    assert found.level == pytest.approx(coverage(k), abs=1e-12)
    assert coverage(k) >= 0.95
    assert k == count // 2 or coverage(k + 1) < 0.95


def test_the_median_interval_covers_the_median_of_a_skewed_distribution() -> None:
    draws = np.random.default_rng(1).exponential(size=(4000, 10))
    held = 0
    for values in draws:
        found = median_interval(list(values))
        assert found is not None
        held += found.low <= math.log(2) <= found.high
    assert held / 4000 == pytest.approx(1 - 2 * 11 / 1024, abs=0.008)


# ---- proportions


@pytest.mark.parametrize(("successes", "count", "low", "high"), [
    # Wilson's formula by hand: (p + z2/2n -+ z sqrt(p(1-p)/n + z2/4n2)) / (1 + z2/n), z = 1.959964
    (0, 10, 0.0, 0.27753), (10, 10, 0.72247, 1.0), (5, 10, 0.23659, 0.76341), (6, 6, 0.60967, 1.0),
    (81, 263, 0.25527, 0.36621),  # Newcombe 1998, table I
])
def test_wilson_against_known_values(successes: int, count: int, low: float, high: float) -> None:
    found = wilson(successes, count)
    assert (found.low, found.high) == pytest.approx((low, high), abs=2e-5)


@CALM
@given(st.integers(1, 200).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_against_its_formula(sample: tuple[int, int]) -> None:
    successes, count = sample
    z, p = 1.959963984540054, successes / count
    centre = (p + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(p * (1 - p) / count + z * z / (4 * count * count))
    found = wilson(successes, count)
    assert (found.low, found.high) == pytest.approx((max(0, centre - half), min(1, centre + half)), abs=1e-9)


@pytest.mark.parametrize(("successes", "count", "problem"), [
    (0, 0, "n must be"), (3, 2, "not be greater than n"), (-1, 2, "k must be"),
])
def test_wilson_refuses_invalid_proportions(successes: int, count: int, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        wilson(successes, count)


# ---- ratios

TIMES = st.lists(st.tuples(st.floats(0.01, 1e4), st.floats(0.01, 1e4)), min_size=2, max_size=12)


@CALM
@given(TIMES)
def test_the_paired_ratio_is_the_t_test_on_logs(pairs: list[tuple[float, float]]) -> None:
    above, below = (np.array(side) for side in zip(*pairs, strict=True))
    ratio, interval = paired_ratio(above, below)
    assert math.log(ratio) == pytest.approx(float(np.mean(np.log(above / below))), abs=1e-9)
    if np.std(np.log(above / below)) > 1e-6:  # scipy warns where all pairs have one ratio
        theirs = scipy_stats.ttest_rel(np.log(above), np.log(below)).confidence_interval(0.95)
        assert math.log(interval.low) == pytest.approx(float(theirs.low), rel=1e-6, abs=1e-9)
        assert math.log(interval.high) == pytest.approx(float(theirs.high), rel=1e-6, abs=1e-9)


def test_a_ratio_by_hand() -> None:
    # logs: ln 2, ln 8 -> mean ln 4, sd ln 4 / sqrt 2, half width t(0.975, 1) sd / sqrt 2 = 12.7062 ln 2
    ratio, interval = paired_ratio([2, 8], [1, 1])
    assert ratio == pytest.approx(4)
    assert math.log(interval.high) == pytest.approx(math.log(4) + 12.706204736 * math.log(2))
    assert interval.level == 0.95


@CALM
@given(TIMES)
def test_swapping_the_cells_inverts_everything(pairs: list[tuple[float, float]]) -> None:
    above, below = zip(*pairs, strict=True)
    ratio, interval = paired_ratio(above, below)
    other, mirrored = paired_ratio(below, above)
    assert math.log(other) == pytest.approx(-math.log(ratio), abs=1e-9)
    assert math.log(mirrored.low) == pytest.approx(-math.log(interval.high), abs=1e-9)
    assert math.log(mirrored.high) == pytest.approx(-math.log(interval.low), abs=1e-9)


@CALM
@given(TIMES, st.floats(0.01, 100))
def test_the_unit_of_time_does_not_matter(pairs: list[tuple[float, float]], scale: float) -> None:
    above, below = (np.array(side) for side in zip(*pairs, strict=True))
    assert paired_ratio(above * scale, below * scale)[0] == pytest.approx(paired_ratio(above, below)[0], rel=1e-9)


@pytest.mark.parametrize(("above", "below", "problem"), [
    ([1.0], [1.0], "at least two pairs"), ([], [], "at least two pairs"), ([1, 2], [1], "one length"),
    ([1, 0], [1, 1], "positive finite"), ([1, -1], [1, 1], "positive finite"),
    ([1, math.nan], [1, 1], "positive finite"),
    ([1, 1], [1, math.inf], "positive finite"),
])
def test_invalid_ratios_are_refused(above: list[float], below: list[float], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        paired_ratio(above, below)


@pytest.mark.parametrize("count", [6, 10])
def test_the_ratio_interval_covers_the_truth_as_often_as_it_says(count: int) -> None:
    generator, truth, held = np.random.default_rng(count), 1.25, 0
    for _ in range(2000):
        machine = generator.lognormal(0, 0.3, count)  # what both trials of a pair share
        candidate = truth * machine * generator.lognormal(0, 0.1, count)
        interval = paired_ratio(candidate, machine * generator.lognormal(0, 0.1, count))[1]
        held += interval.low <= truth <= interval.high
    assert 0.93 <= held / 2000 <= 0.97


# ---- the permutation test


@CALM
@given(st.lists(st.floats(-3, 3).filter(lambda x: abs(x) > 1e-6), min_size=1, max_size=9))
def test_sign_flip_against_brute_force(logs: list[float]) -> None:
    observed = abs(math.fsum(logs))
    sums = [abs(math.fsum(sign * abs(value) for sign, value in zip(signs, logs, strict=True)))
            for signs in itertools.product((1, -1), repeat=len(logs))]
    near = [total for total in sums if abs(total - observed) < 1e-9]
    at_least = sum(total > observed + 1e-9 for total in sums) + len(near)
    found = sign_flip(logs)
    # Ties are ties only up to rounding: the exact count is between those without and with them.
    assert (at_least - len(near)) / len(sums) < found <= at_least / len(sums)


def test_sign_flip_of_one_sided_pairs_is_the_floor() -> None:
    for count in range(1, 11):
        assert sign_flip([0.1] * count) == pytest.approx(sign_flip_floor(count)) == pytest.approx(2 / 2**count)


def test_five_pairs_cannot_be_significant_and_six_can() -> None:
    assert sign_flip_floor(5) == 0.0625
    assert sign_flip_floor(6) == 0.03125
    assert (sign_flip_floor(1), sign_flip_floor(0)) == (1.0, 1.0)


def test_sign_flip_of_no_difference_is_one() -> None:
    assert sign_flip([0.5, -0.5]) == 1.0
    assert sign_flip([0.0, 0.0, 0.0]) == 1.0


@pytest.mark.parametrize("count", [0, 21])
def test_sign_flip_accepts_1_to_20_pairs(count: int) -> None:
    with pytest.raises(ValueError, match="1 to 20 pairs"):
        sign_flip([0.1] * count)


def test_sign_flip_rejects_at_its_level_when_nothing_differs() -> None:
    draws = np.random.default_rng(3).standard_normal((2000, 8))
    rejected = np.mean([sign_flip(row) <= 0.05 for row in draws])
    assert 0.03 <= rejected <= 0.06  # exact: 12/256 = 0.047


def test_logs_of_ratios() -> None:
    assert log_ratios([math.e, 1], [1, math.e]) == pytest.approx([1, -1])


def test_an_interval_that_is_wider_than_floating_point_stays_a_number() -> None:
    ratio, interval = paired_ratio([1.0, 1000.0], [1.0, 1.0], level=0.9999)
    assert ratio == pytest.approx(1000**0.5)
    assert 0 < interval.low < 1e-300 and 1e300 < interval.high < math.inf
    assert [from_log(value) for value in (-math.inf, 0.0, math.inf)] == [0.0, 1.0, math.inf]
