"""Power before running: the smallest effect that a number of pairs can show, and the pairs that an effect needs.

The verdict combines two tests, the t interval and, up to 20 pairs, the exact sign-flip test. At six pairs the exact
test requires six on one side, which is the harder one; its power there is the bound used. From eight pairs on the t
test decides (docs/method.md has the joint power, simulated).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from repro.stats.exact_tests import EXACT_PAIRS, pairs_to_survive, sign_flip_floor
from repro.stats.interval import from_log
from repro.stats.sample import finite, spread

MOST = 10_000
"""Pairs beyond which the answer is: too many to run."""


def paired_power(sd_log: float, ratio: float, pairs: int, alpha: float = 0.05) -> float:
    """Return the probability that both the t test and the exact sign-flip test detect a ratio; 0 below the floor.

    The t test's is exact for normal logs (noncentral t). If the sign-flip test needs all pairs on one side, where its
    probability has a closed form, the smaller of the two is returned.

    Args:
        sd_log: standard deviation of log ratios of pairs, from a pilot.

    Raises:
        ValueError: a spread or a ratio that is not positive, alpha outside (0, 1).
    """
    from scipy.special import ndtr, stdtrit
    from scipy.stats import nct

    effect = _effect(sd_log, ratio, alpha)
    if pairs < 2 or (pairs <= EXACT_PAIRS and sign_flip_floor(pairs) > alpha):
        return 0.0
    bound, shift = float(stdtrit(pairs - 1, 1 - alpha / 2)), abs(effect) * math.sqrt(pairs)
    # Significant on the wrong side: needs a negative mean, P < 4e-5 beyond a shift of 4, where scipy's series may end
    # in NaN.
    wrong = float(nct.cdf(-bound, pairs - 1, shift)) if shift < 4 else 0.0
    power = float(nct.sf(bound, pairs - 1, shift)) + wrong
    if pairs <= EXACT_PAIRS and 2 * sign_flip_floor(pairs) > alpha:
        power = min(power, float(ndtr(effect)) ** pairs + float(ndtr(-effect)) ** pairs)
    return power


def detectable_ratio(sd_log: float, pairs: int, alpha: float = 0.05, power: float = 0.8) -> float | None:
    """Return the smallest ratio above 1 that the pairs show with this power; its inverse is the one below 1.

    None: this many pairs cannot be significant, however large the effect.

    Raises:
        ValueError: as `paired_power`, or a power outside (alpha, 1).
    """
    from scipy.optimize import brentq

    _check_power(alpha, power)
    _effect(sd_log, 2.0, alpha)
    if paired_power(sd_log, from_log(50 * sd_log), pairs, alpha) < power:
        return None
    found = brentq(lambda effect: paired_power(sd_log, from_log(effect * sd_log), pairs, alpha) - power, 1e-9, 50.0)
    return from_log(float(found) * sd_log)


def pairs_needed(
    sd_log: float, ratio: float, alpha: float = 0.05, power: float = 0.8, contrasts: int = 1
) -> int:
    """Return the fewest pairs that show a ratio with this power, as the first of Holm over the contrasts.

    Raises:
        ValueError: as `paired_power`, a power outside (alpha, 1), a ratio of 1, or more than 10,000 pairs.
    """
    _check_power(alpha, power)
    if ratio == 1:
        raise ValueError("no number of pairs shows a ratio of 1 to be a difference; that needs an equivalence test")
    first, level = pairs_to_survive(contrasts, alpha), alpha / contrasts

    def enough(pairs: int) -> bool:
        return paired_power(sd_log, ratio, pairs, level) >= power

    found = _least(enough, first)
    if found is None:
        raise ValueError(f"a ratio of {ratio:g} at a spread of {sd_log:g} needs more than {MOST:,} pairs")
    return found


def equivalence_power(sd_log: float, ratio: float, pairs: int, margin: float, alpha: float = 0.05) -> float:
    """Return the probability that two one-sided tests of the pairs find a true ratio within the margin.

    Exact for normal logs: given the sample's spread s, the mean must fall within the margin less t s / sqrt(n); that is
    averaged over s on a grid of its chi distribution.

    Raises:
        ValueError: as `paired_power`, or a margin that is not positive.
    """
    from scipy.special import ndtr, stdtrit

    _effect(sd_log, ratio, alpha)
    if not margin > 0:
        raise ValueError(f"a margin is a positive number, not {margin}")
    if pairs < 2:
        return 0.0
    freedom, root = pairs - 1, math.sqrt(pairs)
    found = _variances(freedom)
    room = root * math.log1p(margin) / sd_log - float(stdtrit(freedom, 1 - alpha)) * np.sqrt(found)
    shift = root * math.log(ratio) / sd_log
    return float(np.mean(np.where(room > 0, ndtr(room - shift) - ndtr(-room - shift), 0.0)))


@lru_cache(maxsize=1024)
def _variances(freedom: int) -> np.ndarray:
    """Return 400 equally likely values of s^2 / sigma^2."""
    from scipy.special import gammaincinv

    found: np.ndarray = 2 * gammaincinv(freedom / 2, (np.arange(400) + 0.5) / 400) / freedom
    found.setflags(write=False)
    return found


def pairs_to_settle(logs: Sequence[float], margin: float, alpha: float = 0.05, power: float = 0.8) -> int | None:
    """Return the pairs in all, those given included, that would show a difference or equivalence with this power.

    It uses mean and spread of the logs so far as the true ones. None: more than 10,000.

    From few pairs it is a rough forecast: the spread of five is itself known only to a factor of about two.

    Raises:
        ValueError: fewer than two logs, one not finite, all equal, or a margin that is not positive.
    """
    values = finite(logs, "logs of ratios")
    sd = spread(values, "a forecast")
    _check_power(alpha, power)
    ratio = from_log(float(np.mean(values)))

    def enough(pairs: int) -> bool:
        return max(paired_power(sd, ratio, pairs, alpha), equivalence_power(sd, ratio, pairs, margin, alpha)) >= power

    return _least(enough, max(len(values), 2))


def joint_power(
    sd_log: float, ratio: float, pairs: int, generator: np.random.Generator, alpha: float = 0.05, draws: int = 2000
) -> float:
    """Return `paired_power` by simulation of normal logs, both tests applied; up to 14 pairs.

    Raises:
        ValueError: as `paired_power`, or more than 14 pairs.
    """
    from scipy.special import stdtrit

    effect = _effect(sd_log, ratio, alpha)
    if not 2 <= pairs <= 14:
        raise ValueError(f"simulated for 2 to 14 pairs, not {pairs}")
    logs = generator.standard_normal((draws, pairs)) + effect
    t = np.sqrt(pairs) * logs.mean(axis=1) / logs.std(axis=1, ddof=1)
    seen = np.abs(t) > float(stdtrit(pairs - 1, 1 - alpha / 2))
    half = np.arange(2 ** (pairs - 1))  # of all flips; the others mirror them
    signs = 1 - 2 * ((half[:, None] >> np.arange(pairs)) & 1)
    for index in np.flatnonzero(seen):
        sums = np.abs(signs @ logs[index])
        seen[index] = np.mean(sums >= abs(logs[index].sum()) - 1e-12) <= alpha
    return float(np.mean(seen))


def _least(enough: Callable[[int], bool], first: int) -> int | None:
    """Return the smallest n from `first` on for which `enough` holds; it holds for all larger ones."""
    if enough(first):
        return first
    low, high = first, first * 2
    while high <= MOST and not enough(high):
        low, high = high, high * 2
    high = min(high, MOST)
    if not enough(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _effect(sd_log: float, ratio: float, alpha: float) -> float:
    if not (math.isfinite(sd_log) and sd_log > 0):
        raise ValueError(f"the spread of log ratios must be positive, not {sd_log}")
    if not (math.isfinite(ratio) and ratio > 0):
        raise ValueError(f"a ratio must be positive, not {ratio}")
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must be between 0 and 1, not {alpha}")
    return abs(math.log(ratio)) / sd_log


def _check_power(alpha: float, power: float) -> None:
    if not alpha < power < 1:
        raise ValueError(f"a power must be between alpha and 1, not {power}")
