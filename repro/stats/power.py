"""Power before running: the smallest effect that a number of pairs can show, and the pairs that an effect needs.

The verdict requires two tests, the t interval and, up to 20 pairs, the exact sign-flip test: power is that of both
(`repro.stats.joint`). A spread from a pilot is itself uncertain. Given `pilot`, its pairs, the power is averaged over
what the true spread may be: pilot variance / true variance ~ chi2(n - 1) / (n - 1). Planned so, the effect is found in
80 % of all experiments planned from pilots; planned with the pilot's spread as the true one, in 54 to 75 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from repro.stats.exact_tests import pairs_to_survive
from repro.stats.interval import from_log
from repro.stats.joint import joint_powers

MOST_PAIRS = 10_000
"""Pairs beyond which the answer is: too many to run."""


def paired_power(sd_log: float, ratio: float, pairs: int, alpha: float = 0.05, pilot: int | None = None) -> float:
    """Return the probability that both the t test and the exact sign-flip test detect a ratio; 0 below the floor.

    Args:
        sd_log: standard deviation of log ratios of pairs.
        pilot: pairs that `sd_log` was estimated from; the power is averaged over what the true one may be. None: it is
            the true one.

    Raises:
        ValueError: a spread or a ratio that is not positive, alpha outside (0, 1), a pilot of fewer than two pairs.
    """
    effect = _effect(sd_log, ratio, alpha)
    if not effect:
        return 0.0 if pairs < 2 else float(joint_powers(np.zeros(1), pairs, alpha)[0])
    return float(np.mean(joint_powers(effect * _shrinkage(pilot), pairs, alpha)))


def detectable_ratio(
    sd_log: float, pairs: int, alpha: float = 0.05, power: float = 0.8, pilot: int | None = None
) -> float | None:
    """Return the smallest ratio above 1 that the pairs show with this power; its inverse is the one below 1.

    None: this many pairs cannot be significant, however large the effect.

    Raises:
        ValueError: as `paired_power`, or a power outside (alpha, 1).
    """
    from scipy.optimize import brentq

    _check_power(alpha, power)
    _effect(sd_log, 2.0, alpha)

    def excess(effect: float) -> float:
        return paired_power(sd_log, from_log(effect * sd_log), pairs, alpha, pilot) - power

    return from_log(float(brentq(excess, 1e-9, 50.0)) * sd_log) if excess(50.0) >= 0 else None


def pairs_needed(
    sd_log: float, ratio: float, alpha: float = 0.05, power: float = 0.8, contrasts: int = 1, pilot: int | None = None
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
        return paired_power(sd_log, ratio, pairs, level, pilot) >= power

    found = _least(enough, first)
    if found is None:
        raise ValueError(f"a ratio of {ratio:g} at a spread of {sd_log:g} needs more than {MOST_PAIRS:,} pairs")
    return found


def equivalence_power(
    sd_log: float, ratio: float, pairs: int, margin: float, alpha: float = 0.05, pilot: int | None = None
) -> float:
    """Return the probability that two one-sided tests of the pairs find a true ratio within the margin.

    Exact for normal logs: given the sample's spread s, the mean must fall within the margin less t s / sqrt(n); that is
    averaged over s on a grid of its chi distribution.

    Args:
        pilot: as for `paired_power`.

    Raises:
        ValueError: as `paired_power`, or a margin that is not positive.
    """
    from scipy.special import ndtr, stdtrit

    _effect(sd_log, ratio, alpha)
    if not margin > 0:
        raise ValueError(f"a margin is a positive number, not {margin}")
    if pairs < 2:
        return 0.0
    freedom, scale = pairs - 1, math.sqrt(pairs) / sd_log * _shrinkage(pilot)[:, None]
    room = scale * math.log1p(margin) - float(stdtrit(freedom, 1 - alpha)) * np.sqrt(_variances(freedom))
    shift = scale * math.log(ratio)
    return float(np.mean(np.where(room > 0, ndtr(room - shift) - ndtr(-room - shift), 0.0)))


def _shrinkage(pilot: int | None) -> np.ndarray:
    """Return equally likely values of the pilot's spread over the true one; 1 if the spread is known.

    Raises:
        ValueError: fewer than two pairs.
    """
    if pilot is None:
        return np.ones(1)
    if pilot < 2:
        raise ValueError(f"a pilot of {pilot} pairs has no spread")
    return np.asarray(np.sqrt(_variances(pilot - 1)))


@lru_cache(maxsize=1024)
def _variances(freedom: int) -> np.ndarray:
    """Return 200 equally likely values of s^2 / sigma^2."""
    from scipy.special import gammaincinv

    found: np.ndarray = 2 * gammaincinv(freedom / 2, (np.arange(200) + 0.5) / 200) / freedom
    found.setflags(write=False)
    return found


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
    while high <= MOST_PAIRS and not enough(high):
        low, high = high, high * 2
    high = min(high, MOST_PAIRS)
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
