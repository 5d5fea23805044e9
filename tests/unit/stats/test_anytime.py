"""The e-process of sign flips: its error at every n at once, its interval, runs that missed."""

import math

import numpy as np
import pytest

from repro.stats.anytime import anytime_interval, bet, e_difference, e_same


@pytest.mark.slow
@pytest.mark.parametrize("draw", [
    lambda generator: generator.standard_normal((4000, 150)),
    lambda generator: generator.standard_t(3, (4000, 150)),
    lambda generator: np.where(generator.random((4000, 150)) < 0.5, -1.0, 1.0) * generator.integers(0, 3, (4000, 150)),
    lambda generator: np.where(generator.random((4000, 150)) < 0.2, np.inf, 1.0)
    * np.where(generator.random((4000, 150)) < 0.5, -1.0, 1.0)], ids=["normal", "t3", "grid", "missed"])
def test_equal_cells_reach_one_in_alpha_at_most_that_often_over_all_n(draw):
    stakes = bet(draw(np.random.default_rng(7)))
    for found in (stakes.either, stakes.above, stakes.below):
        assert np.mean(found.max(axis=1) >= math.log(20)) <= 0.05 + 2 * 0.0034


def test_a_stake_is_a_fair_game_over_all_signs():
    sizes = np.array([0.3, 1.0, 0.2, 2.0, 0.7, 0.7, 0.1])
    signs = 1 - 2 * ((np.arange(2 ** 7)[:, None] >> np.arange(7)) & 1)
    assert np.mean(np.exp(bet(signs * sizes).above[:, -1])) == pytest.approx(1.0, abs=1e-9)


def test_a_clear_difference_is_found_from_seven_pairs_on_and_not_before():
    assert e_difference([0.1] * 6) < 20 <= e_difference([0.1] * 7)
    assert e_same([0.001, -0.001] * 4, 0.05) >= 20 > e_same([0.001, -0.001] * 2, 0.05)


def test_the_interval_excludes_one_exactly_when_a_stake_says_so():
    generator = np.random.default_rng(3)
    for shift in (0.0, 0.05, 0.1, 0.2):
        logs = generator.normal(shift, 0.14, 25)
        found = anytime_interval(logs)
        outside = max(bet(logs).above.max(), bet(logs).below.max()) >= math.log(40)
        assert outside == (not found.low <= 1 <= found.high)


def test_the_interval_contains_the_true_ratio_at_all_n_at_once():
    generator = np.random.default_rng(9)
    found = [anytime_interval(generator.normal(0.1, 0.14, 40)) for _ in range(120)]  # it only narrows with n
    assert np.mean([item.low <= math.exp(0.1) <= item.high for item in found]) >= 0.95


def test_missed_runs_count_with_their_order_and_have_no_interval():
    logs = [0.1, math.inf, 0.2, math.nan, math.inf, 0.1, 0.15, math.inf, math.inf]
    assert e_difference(logs) > 20
    assert anytime_interval(logs) is None
    with pytest.raises(ValueError, match="finite"):
        e_same(logs, 0.05)


def test_what_has_no_evidence_is_refused_or_one():
    assert e_difference([0.0] * 10) == 1.0
    with pytest.raises(ValueError, match="one list"):
        e_difference([])
    with pytest.raises(ValueError, match="positive"):
        e_same([0.1], 0.0)
