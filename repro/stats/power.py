"""Power before running: the smallest effect that a number of pairs can show, and the pairs that an effect needs.

The verdict requires two tests, the t interval and, up to 20 pairs, the exact sign-flip test: power is that of both
(`joint_powers`). A spread from a pilot is itself uncertain. Given `pilot`, its pairs, the power is averaged over
what the true spread may be: pilot variance / true variance ~ chi2(n - 1) / (n - 1). Planned so, the effect is found in
80 % of all experiments planned from pilots; planned with the pilot's spread as the true one, in 54 to 75 %.

The t test's power is exact (noncentral t). The sign-flip test depends on the shape of the sample too: for one shape it
is a t test with a bound of its own. Of both tests the larger bound counts, so the power of both is that of the t test,
averaged over the bounds of a fixed sample of shapes. It never falls with the effect.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from repro.stats.exact_tests import EXACT_PAIRS, pairs_to_survive, signed_sums
from repro.stats.interval import from_log
from repro.stats.sample import least, margin_edge

ALIKE = 14
"""Pairs from which on the sign-flip test decides as the t test does, within 0.5 %, at a level of 5 % or more. At lower
ones it does so less often: with 15 pairs at 5 % / 20 in 76 % where the t test does in 80 %."""
SHAPES, FEWEST_SHAPES, BOUNDS = 4000, 100, 10
SEED = 20151102


def joint_powers(effects: np.ndarray, pairs: int, alpha: float) -> np.ndarray:
    """Return the probability that both tests detect each effect, on its side; 0 below the sign-flip test's floor.

    Args:
        effects: mean of the log ratios over their standard deviation, at least 0.
    """
    if _is_below_floor(pairs, alpha):
        return np.zeros(len(effects))
    from scipy.special import nctdtr

    bounds, shifts = _bounds(pairs, alpha)[:, None], effects * math.sqrt(pairs)
    with np.errstate(all="ignore"):
        missed = nctdtr(pairs - 1, shifts, bounds)
    # Far from the bound scipy's series may end in NaN.
    missed = np.where(np.isnan(missed), shifts < bounds, missed)
    return np.asarray(np.mean(1 - missed, axis=0))


def flips_allowed(pairs: int, alpha: float) -> int:
    """Return how many of the 2^(n-1) flips of one side may give a sum as far out as the one seen, itself included."""
    return math.floor(alpha * 2.0 ** (min(pairs, 100) - 1) * (1 + 1e-12))


def _is_below_floor(pairs: int, alpha: float) -> bool:
    return pairs < 2 or (pairs <= EXACT_PAIRS and flips_allowed(pairs, alpha) < 1)


@lru_cache(maxsize=512)
def _bounds(pairs: int, alpha: float) -> np.ndarray:
    """Return equally likely bounds of t above which both tests detect.

    A flip of the subset M gives a sum as far out as the one seen if the mean of M is at most 0. With mean m, spread s
    and standardized values u, that of k flips is so if m / s is at most minus the k-th smallest mean of a subset of u.
    """
    from scipy.special import stdtrit

    by_t, allowed = float(stdtrit(pairs - 1, 1 - alpha / 2)), flips_allowed(pairs, alpha)
    if pairs > EXACT_PAIRS or (pairs >= ALIKE and alpha >= 0.05):
        return np.array([by_t])
    count = max(FEWEST_SHAPES, SHAPES >> 2 * max(0, pairs - ALIKE)) // BOUNDS * BOUNDS  # each costs 2^n
    shapes = np.random.default_rng(SEED + pairs).standard_normal((count, pairs))
    shapes = (shapes - shapes.mean(axis=1, keepdims=True)) / shapes.std(axis=1, ddof=1, keepdims=True)
    sizes = (signed_sums(np.ones(pairs)) + pairs)[:-1]  # twice those of all subsets but the empty one, which is last
    # Standardized values sum to 0, so that the signed sum is twice that of the subset.
    by_flips = np.array([-np.partition(signed_sums(shape)[:-1] / sizes, allowed - 1)[allowed - 1] for shape in shapes])
    both = np.sort(np.maximum(by_t, by_flips * math.sqrt(pairs)))
    found: np.ndarray = both.reshape(BOUNDS, -1).mean(axis=1)
    found.setflags(write=False)
    return found


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
    return float(np.mean(joint_powers(_effect(sd_log, ratio, alpha) * _shrinkage(pilot), pairs, alpha)))


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

    found = least(lambda pairs: paired_power(sd_log, ratio, pairs, level, pilot) >= power, first, MOST_PAIRS)
    if found is None:
        raise ValueError(f"a ratio of {ratio:g} at a spread of {sd_log:g} needs more than {MOST_PAIRS:,} pairs")
    return found


def equivalence_power(
    sd_log: float, ratio: float, pairs: int, margin: float, alpha: float = 0.05, pilot: int | None = None
) -> float:
    """Return the probability that the two one-sided t tests and the sign-flip test of each side find a true ratio
    within the margin; 0 below the floor.

    For normal logs, given the sample's spread s, the mean must fall within the margin less b s / sqrt(n), with b the
    larger of both tests' bounds; that is averaged over s on a grid of its chi distribution, and over b.

    Args:
        pilot: as for `paired_power`.

    Raises:
        ValueError: as `paired_power`, or a margin that is not positive.
    """
    from scipy.special import ndtr

    _effect(sd_log, ratio, alpha)
    edge = margin_edge(margin)
    if _is_below_floor(pairs, 2 * alpha):
        return 0.0
    scale = math.sqrt(pairs) / sd_log * _shrinkage(pilot)[:, None, None]
    bounds = _bounds(pairs, 2 * alpha)[:, None]  # of one side; those of two sides have half of the level on each
    room = scale * edge - bounds * np.sqrt(variances(pairs - 1))
    shift = scale * math.log(ratio)
    return float(np.mean(np.where(room > 0, ndtr(room - shift) - ndtr(-room - shift), 0.0)))


def _shrinkage(pilot: int | None) -> np.ndarray:
    """Return equally likely values of the pilot's spread over the true one; 1 if the spread is known."""
    if pilot is None:
        return np.ones(1)
    if pilot < 2:
        raise ValueError(f"a pilot of {pilot} pairs has no spread")
    return np.asarray(np.sqrt(variances(pilot - 1)))


@lru_cache(maxsize=1024)
def variances(freedom: float, count: int = 200) -> np.ndarray:
    """Return equally likely values of s^2 / sigma^2."""
    from scipy.special import gammaincinv

    found: np.ndarray = 2 * gammaincinv(freedom / 2, (np.arange(count) + 0.5) / count) / freedom
    found.setflags(write=False)
    return found


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
