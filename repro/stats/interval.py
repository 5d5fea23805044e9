"""One sample: intervals of its median, its mean and of a proportion, its variation, outliers and normality."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from repro.stats.sample import FLAT, at_least, check_level, finite, positive, spread

_LEAST_LOG, _LARGEST_LOG = math.log(sys.float_info.min), math.log(sys.float_info.max)


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval and its nominal coverage."""

    low: float
    high: float
    level: float


def median_interval(values: Sequence[float], level: float = 0.95) -> Interval | None:
    """Return the order-statistic interval of the median; it assumes no distribution.

    The narrowest symmetric pair of order statistics (k, n+1-k) whose coverage 1 - 2 P(Bin(n, 1/2) < k) reaches
    `level`; the interval's own coverage is kept in `level` (exact for continuous values, more where values tie: Hoefler
    & Belli 2015, section 3.1.3). None if n is too small for any pair (n < 6 at 95 %).

    Raises:
        ValueError: a value is not finite.
    """
    check_level(level)
    ordered = sorted(finite(values).tolist())
    coverages = _coverages(len(ordered))
    k = int(np.sum(coverages >= level))
    return Interval(ordered[k - 1], ordered[-k], float(coverages[k - 1])) if k else None


@lru_cache(maxsize=256)
def _coverages(count: int) -> np.ndarray:
    """Return the coverage of the interval between the k-th values from both ends, k = 1, 2, ...: falling."""
    from scipy.special import bdtr

    return np.asarray(1.0 - 2.0 * bdtr(np.arange(count // 2, dtype=float), count, 0.5))


@lru_cache(maxsize=4096)  # a record has many cells and few counts; scipy takes most of a millisecond
def wilson(successes: int, count: int, level: float = 0.95) -> Interval:
    """Return Wilson's score interval of a proportion (Wilson 1927).

    Its coverage is `level` on average over proportions; at a given n and proportion it is above or below, because
    counts are discrete (docs/method.md gives exact figures).

    Raises:
        ValueError: no trials, or more successes than trials.
    """
    from scipy.stats import binomtest

    check_level(level)
    found = binomtest(successes, count).proportion_ci(confidence_level=level, method="wilson")
    return Interval(float(found.low), float(found.high), level)


def mean_interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """Return Student's t interval of the mean of any finite values, also negative ones.

    Right for normal values, and 93 to 97 % (at 95 %) for skewed ones up to a coefficient of variation of 0.3. For
    log-normal times with one of 1 it covers 87 %: use ratios on logs there, or the median (docs/method.md).

    Raises:
        ValueError: fewer than two values, all equal, or one not finite.
    """
    array = finite(values)
    error = spread(array, "an interval of the mean") / math.sqrt(len(array))
    centre, half = float(np.mean(array)), t_quantile(0.5 + check_level(level) / 2, len(array) - 1) * error
    return Interval(centre - half, centre + half, level)


def from_log(value: float) -> float:
    """Return exp; for a finite value never 0 or infinite, but at the ends the smallest or largest float.

    The interval of a few pairs at a high level may reach beyond: it says nothing then, but must stay a number.
    """
    if math.isinf(value):
        return math.exp(value)
    return math.exp(min(max(value, _LEAST_LOG), _LARGEST_LOG))


def t_quantile(probability: float, freedom: float) -> float:
    """Return Student's t at a probability; infinite without a degree of freedom."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, probability)) if freedom > 0 else math.inf


OUTLIER_LIMIT = 3.5
"""Modified z score beyond which a value is marked (Iglewicz & Hoaglin 1993)."""
LEAST_VALUES = 5


def coefficient_of_variation(values: Sequence[float]) -> float:
    """Return the standard deviation (n - 1) over the mean, of positive values; 0 if all are equal.

    Raises:
        ValueError: fewer than two values, or one not positive and finite.
    """
    array = at_least(positive(values), 2, "a coefficient of variation")
    return float(np.std(array, ddof=1) / np.mean(array))


def outlier_marks(values: Sequence[float]) -> list[bool]:
    """Mark the values to look at, in the order given: modified z score on logs, 0.6745 |x - median| / MAD, above 3.5.

    Below five values none is marked. If more than half of the values are equal, the MAD is 0 and the mean absolute
    deviation x 1.2533 replaces it (the same source). A mark is a question, not a test: at n = 5 it also falls on normal
    logs without any outlier (docs/method.md says how often).

    Raises:
        ValueError: a value is not positive and finite.
    """
    logs = np.log(positive(values))
    if len(logs) < LEAST_VALUES:
        return [False] * len(logs)
    away = np.abs(logs - np.median(logs))
    scale = float(np.median(away)) / 0.6745
    if scale <= FLAT:
        scale = 1.253314 * float(np.mean(away))
    if scale <= FLAT:
        return [False] * len(logs)
    return [bool(mark) for mark in away / scale > OUTLIER_LIMIT]


def shapiro_p(values: Sequence[float]) -> float:
    """p of Shapiro and Wilk's test that the values are normal (Biometrika 52, 1965); a small p speaks against it.

    With few values it detects only gross departures.

    Raises:
        ValueError: fewer than 3 values, one is not finite, or they are equal.
    """
    from scipy.stats import shapiro

    found = finite(values)
    if len(found) < 3:
        raise ValueError(f"{len(found)} values; 3 are the least for a test of normality")
    if float(np.ptp(found)) <= 1e-12 * max(1.0, float(np.max(np.abs(found)))):
        raise ValueError("the values do not spread")
    return float(shapiro(found).pvalue)
