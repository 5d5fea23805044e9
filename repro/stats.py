"""Pure statistics: numbers in, numbers out; no clock, no file, no randomness of its own.

Sources: Hoefler & Belli 2015 (order-statistic intervals, geometric means of ratios), Wilson 1927 (proportions),
Student's t on log ratios of pairs, Fisher's sign-flip permutation test.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval and the coverage it was made for."""

    low: float
    high: float
    level: float


def median_interval(values: Sequence[float], level: float = 0.95) -> Interval | None:
    """Order-statistic interval of the median, no distribution assumed.

    The narrowest symmetric pair of order statistics (k, n+1-k) whose coverage 1 - 2 P(Bin(n, 1/2) < k) reaches
    `level`; the interval's own coverage is kept in `level`. None when n is too small for any pair (n < 6 at 95 %).
    """
    from scipy.stats import binom

    ordered = sorted(values)
    count = len(ordered)
    best: Interval | None = None
    for k in range(1, count // 2 + 1):
        coverage = 1.0 - 2.0 * float(binom.cdf(k - 1, count, 0.5))
        if coverage < level:
            break
        best = Interval(ordered[k - 1], ordered[count - k], coverage)
    return best


def wilson(successes: int, count: int, level: float = 0.95) -> Interval:
    """Wilson's score interval of a proportion (Wilson 1927).

    Raises:
        ValueError: no trials, or more successes than trials.
    """
    from scipy.stats import binomtest

    found = binomtest(successes, count).proportion_ci(confidence_level=level, method="wilson")
    return Interval(float(found.low), float(found.high), level)


def paired_ratio(candidate: Sequence[float], baseline: Sequence[float], level: float = 0.95) -> tuple[float, Interval]:
    """Geometric mean of candidate/baseline over pairs, with a t interval on the logs, exponentiated.

    Raises:
        ValueError: fewer than two pairs, or a value that is not a positive finite number.
    """
    from scipy.stats import t

    logs = log_ratios(candidate, baseline)
    count = len(logs)
    if count < 2:
        raise ValueError("an interval needs at least two pairs")
    mean = float(np.mean(logs))
    half = float(t.ppf(0.5 + level / 2, count - 1)) * float(np.std(logs, ddof=1)) / math.sqrt(count)
    return math.exp(mean), Interval(math.exp(mean - half), math.exp(mean + half), level)


def log_ratios(candidate: Sequence[float], baseline: Sequence[float]) -> np.ndarray:
    """log(candidate / baseline), pair by pair.

    Raises:
        ValueError: lengths differ, or a value is not a positive finite number.
    """
    above, below = np.asarray(candidate, dtype=float), np.asarray(baseline, dtype=float)
    if above.shape != below.shape or above.ndim != 1:
        raise ValueError(f"pairs need two lists of one length, not {above.shape} and {below.shape}")
    if not (np.all(np.isfinite(above)) and np.all(np.isfinite(below)) and np.all(above > 0) and np.all(below > 0)):
        raise ValueError("ratios need positive finite values")
    return np.asarray(np.log(above) - np.log(below))


def sign_flip_floor(pairs: int) -> float:
    """Smallest two-sided p that the exact sign-flip test can give with this many pairs: 2 / 2^n."""
    return min(1.0, 2.0 ** (1 - pairs))


def sign_flip(logs: Sequence[float], limit: int = 20) -> float:
    """Two-sided exact sign-flip permutation p of mean log ratio = 0 (Fisher); up to `limit` pairs, all 2^n flips.

    Raises:
        ValueError: no pairs, or more than `limit`.
    """
    values = np.asarray(logs, dtype=float)
    if not 0 < len(values) <= limit:
        raise ValueError(f"the exact test takes 1 to {limit} pairs, not {len(values)}")
    sums = np.zeros(1)
    for value in np.abs(values):
        sums = np.concatenate([sums + value, sums - value])
    observed = abs(float(values.sum()))
    return float(np.mean(np.abs(sums) >= observed * (1 - 1e-12)))
