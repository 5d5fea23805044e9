"""Student's t: ratios of two samples of times, their equivalence, and the claim that a mean reaches a target.

Ratios are on logs, so that units cancel and swapping inverts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from repro.stats.exact_tests import sign_flip_any
from repro.stats.interval import Interval, from_log, t_quantile
from repro.stats.sample import at_least, check_level, deviation, finite, margin_edge, mean, positive, spread


def log_ratios(candidate: Sequence[float], baseline: Sequence[float]) -> np.ndarray:
    """Return log(candidate / baseline) of each pair.

    Raises:
        ValueError: lengths differ, or a value is not a positive finite number.
    """
    above, below = np.asarray(candidate, dtype=float), np.asarray(baseline, dtype=float)
    if above.shape != below.shape or above.ndim != 1:
        raise ValueError(f"pairs need two lists of one length, not {above.shape} and {below.shape}")
    both = np.concatenate([above, below])
    if not ((both > 0) & np.isfinite(both)).all():
        raise ValueError("ratios need positive finite values")
    return np.asarray(np.log(above) - np.log(below))


def paired_ratio(candidate: Sequence[float], baseline: Sequence[float], level: float = 0.95) -> tuple[float, Interval]:
    """Return the geometric mean of candidate/baseline over pairs, with a t interval on the logs, exponentiated.

    If all pairs have one ratio the interval has no width. It has no coverage then: times from a coarse evaluation grid
    often agree exactly. The caller must not show such an interval (`paired_p` refuses).

    Raises:
        ValueError: fewer than two pairs, or a value that is not a positive finite number.
    """
    logs = log_ratios(candidate, baseline)
    count = len(logs)
    if count < 2:
        raise ValueError("an interval needs at least two pairs")
    middle = mean(logs)
    half = t_quantile(0.5 + check_level(level) / 2, count - 1) * deviation(logs) / math.sqrt(count)
    return from_log(middle), Interval(from_log(middle - half), from_log(middle + half), level)


def paired_p(candidate: Sequence[float], baseline: Sequence[float]) -> float:
    """Return the two-sided p of Student's t test that the mean log ratio of pairs is 0.

    Raises:
        ValueError: as `paired_ratio`, or all pairs have one ratio.
    """
    logs = log_ratios(candidate, baseline)
    error = spread(logs, "a t test of pairs") / math.sqrt(len(logs))
    return two_sided(mean(logs) / error, len(logs) - 1)


def welch_ratio(candidate: Sequence[float], baseline: Sequence[float], level: float = 0.95) -> tuple[float, Interval]:
    """Return the ratio of geometric means of two independent samples, with Welch's interval on logs (Welch 1947).

    Raises:
        ValueError: fewer than two values on a side, one not positive and finite, or no spread on both sides.
    """
    difference, error, freedom = welch(candidate, baseline)
    half = t_quantile(0.5 + check_level(level) / 2, freedom) * error
    return from_log(difference), Interval(from_log(difference - half), from_log(difference + half), level)


def welch_p(candidate: Sequence[float], baseline: Sequence[float]) -> float:
    """Return the two-sided p of Welch's t test on logs that the geometric means agree.

    Raises:
        ValueError: as `welch_ratio`.
    """
    difference, error, freedom = welch(candidate, baseline)
    return two_sided(difference / error, freedom)


def welch(candidate: Sequence[float], baseline: Sequence[float]) -> tuple[float, float, float]:
    """Return (difference of mean logs, its standard error, Satterthwaite's degrees of freedom).

    Raises:
        ValueError: as `welch_ratio`.
    """
    above = np.log(at_least(positive(candidate), 2, "a ratio of two samples"))
    below = np.log(at_least(positive(baseline), 2, "a ratio of two samples"))
    spread(np.concatenate([above - mean(above), below - mean(below)]), "a ratio of two samples")
    parts = [deviation(logs)**2 / len(logs) for logs in (above, below)]
    total = math.fsum(parts)
    freedom = total**2 / math.fsum(part**2 / (len(logs) - 1) for part, logs in zip(parts, (above, below), strict=True))
    return mean(above) - mean(below), math.sqrt(total), freedom


def two_sided(statistic: float, freedom: float) -> float:
    """Return p of |t| at least this large."""
    from scipy.special import stdtr

    return min(1.0, 2.0 * float(stdtr(freedom, -abs(statistic))))


@dataclass(frozen=True, slots=True)
class Equivalence:
    """Outcome of two one-sided tests that the ratio is within 1 / (1 + margin) to 1 + margin."""

    p: float
    """The larger of the two."""
    interval: Interval
    """Interval of the ratio, at 1 - 2 alpha: inside the margin exactly if `equivalent`."""
    equivalent: bool


def tost(logs: Sequence[float], margin: float, alpha: float = 0.05) -> Equivalence:
    """Test the equivalence of pairs.

    Args:
        logs: log ratios of pairs.
        margin: 0.05 tests for a ratio between 1 / 1.05 and 1.05, a range that stays the same if the cells are swapped.

    Raises:
        ValueError: fewer than two pairs, one not finite, all equal (an effect of the grid, not equality), or a margin
            or an alpha out of range.
    """
    values = finite(logs, "logs of ratios")
    error = spread(values, "an equivalence test") / math.sqrt(len(values))
    return _outcome(mean(values), error, len(values) - 1, margin, alpha)


def equivalent_pairs(logs: Sequence[float], margin: float, alpha: float = 0.05) -> Equivalence:
    """Test the equivalence of pairs by two one-sided t tests and by the sign-flip test of each side, all of which must
    reject. p is the largest of them. The t tests assume normal logs, sign flips only a symmetric distribution.

    Raises:
        ValueError: as `tost`.
    """
    found, edge = tost(logs, margin, alpha), margin_edge(margin)
    sides = [sign_flip_any([value + shift for value in logs]) / 2 for shift in (edge, -edge)]
    p = max(found.p, *sides)
    return replace(found, p=p, equivalent=found.equivalent and p <= alpha)


def tost_welch(
    candidate: Sequence[float], baseline: Sequence[float], margin: float, alpha: float = 0.05
) -> Equivalence:
    """Test the equivalence of two independent samples of times, with Welch's error and degrees of freedom.

    Raises:
        ValueError: as `welch_ratio`, or a margin or an alpha out of range.
    """
    return _outcome(*welch(candidate, baseline), margin, alpha)


def _outcome(mean: float, error: float, freedom: float, margin: float, alpha: float) -> Equivalence:
    from scipy.special import stdtr

    edge = margin_edge(margin)
    if not 0 < alpha < 0.5:
        raise ValueError(f"alpha must be between 0 and 0.5, not {alpha}")
    p = max(float(stdtr(freedom, (mean - edge) / error)), float(stdtr(freedom, (-edge - mean) / error)))
    half = t_quantile(1 - alpha, freedom) * error
    interval = Interval(from_log(mean - half), from_log(mean + half), 1 - 2 * alpha)
    return Equivalence(p, interval, p <= alpha)


Direction = Literal["higher", "lower"]
"""Direction of better qualities: "higher" or "lower"."""


@dataclass(frozen=True, slots=True)
class QualityClaim:
    """Outcome of a one-sided test that a mean is at least as good as a target."""

    mean: float
    deviation: float
    """Standard deviation of the sample (n - 1)."""
    n: int
    p: float
    """Probability of a mean as far on the good side if the true mean were the target."""
    supported: bool
    """p is at most alpha."""


def quality_claim(
    values: Sequence[float], target: float, direction: Direction = "lower", alpha: float = 0.01
) -> QualityClaim:
    """Test the claim by Student's one-sample t test; the null hypothesis is a mean on the bad side of the target.

    Args:
        values: the quality at the end of every declared run; none may be left out.
        alpha: level of the test, declared before the runs.

    Raises:
        ValueError: fewer than two values, no spread, one not finite, or alpha out of range.
    """
    from scipy.special import stdtr

    if not 0 < alpha < 0.5:
        raise ValueError(f"alpha must be between 0 and 0.5, not {alpha}")
    if not math.isfinite(target):
        raise ValueError(f"a target must be a finite number, not {target}")
    array = finite(values, "qualities")
    deviation, middle = spread(array, "a test of a mean"), mean(array)
    statistic = (middle - target) / (deviation / math.sqrt(len(array)))
    p = float(stdtr(len(array) - 1, statistic if direction == "lower" else -statistic))
    return QualityClaim(middle, deviation, len(array), p, p <= alpha)
