"""Equivalence of two cells within a margin: two one-sided tests (Schuirmann 1987) on logs of times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from repro.stats.interval import Interval, from_log, t_quantile
from repro.stats.ratio import welch
from repro.stats.sample import finite, mean, spread


@dataclass(frozen=True, slots=True)
class Equivalence:
    """Outcome of two one-sided tests that the ratio is within 1 / (1 + margin) to 1 + margin."""

    p: float
    """The larger of the two."""
    interval: Interval
    """Interval of the ratio, at 1 - 2 alpha: inside the margin exactly if `equivalent`."""
    equivalent: bool
    margin: float


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

    if not (margin > 0 and math.isfinite(margin)):
        raise ValueError(f"a margin is a positive number, 0.05 for 5 %, not {margin}")
    if not 0 < alpha < 0.5:
        raise ValueError(f"alpha must be between 0 and 0.5, not {alpha}")
    edge = math.log1p(margin)
    p = max(float(stdtr(freedom, (mean - edge) / error)), float(stdtr(freedom, (-edge - mean) / error)))
    half = t_quantile(1 - alpha, freedom) * error
    interval = Interval(from_log(mean - half), from_log(mean + half), 1 - 2 * alpha)
    return Equivalence(p, interval, p <= alpha, margin)
