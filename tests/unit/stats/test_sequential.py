"""Boundaries of group-sequential designs against published ones, and their error with Student's t."""

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import stdtr

from repro.stats import sign_flip
from repro.stats.sequential import _Process, look_levels, spending_bounds, spent


def exit_probabilities(information, bounds, two_sided, effect=0.0):
    """The probability that each look is the first beyond its bound; `effect`: mean of a pair in its deviations."""
    process, found = _Process(two_sided, effect), []
    for amount, bound in zip(information, bounds, strict=True):
        process.advance(amount)
        found.append(process.exit(bound))
        process.stay(bound)
    return found


def test_the_power_family_gives_the_nominal_levels_of_the_method():
    levels = look_levels((10, 15, 20, 30))
    assert [level.difference for level in levels] == pytest.approx([0.0056, 0.0094, 0.0155, 0.0386], abs=6e-5)
    assert [level.same for level in levels] == pytest.approx([0.0056, 0.0097, 0.0162, 0.0403], abs=6e-5)


@pytest.mark.parametrize(("looks", "pocock", "obrien"), [
    # gsDesign's test.type 2, and Jennison & Turnbull (2000), tables 2.1 and 2.3
    (2, 2.1783, 1.9774), (3, 2.2895, 2.0040), (4, 2.3613, 2.0243), (5, 2.4132, 2.0401)])
def test_the_integral_gives_the_published_constants(looks, pocock, obrien):
    places = list(range(1, looks + 1))

    def error(constant, exponent):
        return sum(exit_probabilities(places, [constant * (looks / k) ** exponent for k in places], True)) - 0.05

    assert brentq(lambda c: error(c, 0.0), 1.5, 3.0) == pytest.approx(pocock, abs=1e-4)
    assert brentq(lambda c: error(c, 0.5), 1.5, 3.0) == pytest.approx(obrien, abs=1e-4)


@pytest.mark.parametrize(("spending", "published"), [
    ("obrien-fleming", [4.8769, 3.3570, 2.6803, 2.2898, 2.0310]),  # Reboussin and others (2000), gsDesign's sfLDOF
    ("pocock", [2.4380, 2.4268, 2.4102, 2.3966, 2.3860])])  # the same, sfLDPocock
def test_lan_and_demets_bounds_are_the_published_ones(spending, published):
    found = spending_bounds(range(1, 6), [spent(k / 5, 0.05, spending) for k in range(1, 6)], two_sided=True)
    assert found == pytest.approx(published, abs=1e-4)


def test_the_bounds_spend_what_they_may_and_one_look_is_the_fixed_test():
    places = (10, 11, 50, 400)
    cumulative = [spent(n / 400, spending="pocock") for n in places]
    bounds = spending_bounds(places, cumulative, two_sided=False)
    assert np.cumsum(exit_probabilities(places, bounds, False)) == pytest.approx(cumulative, abs=1e-9)
    only = look_levels((12,), "obrien-fleming")[0]
    assert (only.difference, only.same) == pytest.approx((0.05, 0.05))


def test_an_effect_makes_crossing_as_likely_as_a_simulation_says():
    places, bounds = (5, 10), (2.8, 2.0)
    draws = np.random.default_rng(5).standard_normal((40_000, 10)).cumsum(axis=1) + 0.5 * np.arange(1, 11)
    first = draws[:, 4] / np.sqrt(5) >= bounds[0]
    second = ~first & (draws[:, 9] / np.sqrt(10) >= bounds[1])
    found = exit_probabilities(places, bounds, two_sided=False, effect=0.5)
    assert found == pytest.approx([first.mean(), second.mean()], abs=0.008)


@pytest.mark.parametrize(("looks", "spending", "power"), [((7, 10, 14, 20), "power", 1.0), ((8, 16), "pocock", 1.0)])
def test_with_t_and_sign_flips_the_error_of_all_looks_stays_at_five_per_cent(looks, spending, power):
    draws = np.random.default_rng(11).standard_normal((8_000, looks[-1]))
    different, same = np.zeros(len(draws), bool), np.zeros(len(draws), bool)
    for level in look_levels(looks, spending, power):
        part = draws[:, :level.n]
        t = np.sqrt(level.n) * part.mean(axis=1) / part.std(axis=1, ddof=1)
        for row in np.flatnonzero((2 * stdtr(level.n - 1, -np.abs(t)) <= level.difference) & ~different):
            different[row] = sign_flip(part[row]) <= level.difference
        for row in np.flatnonzero((stdtr(level.n - 1, t) <= level.same) & ~same):  # at the edge of the margin
            same[row] = sign_flip(part[row]) / 2 <= level.same
    most = 0.05 + 2.5 * np.sqrt(0.05 * 0.95 / len(draws))
    assert 0.03 < different.mean() <= most
    assert 0.03 < same.mean() <= most


@pytest.mark.parametrize(("looks", "spending", "power", "text"), [
    ((10, 10), "power", 2.0, "looks must rise"), ((), "power", 2.0, "1 to 50 looks"),
    ((5, 10), "haybittle", 2.0, "unknown"), ((5, 10), "power", 0.0, "power of a spending function")])
def test_a_design_that_makes_no_sense_is_refused(looks, spending, power, text):
    with pytest.raises(ValueError, match=text):
        look_levels(looks, spending, power)
