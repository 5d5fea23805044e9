"""The evaluation grid: a crossing is between the last miss and the first hit; the effect of that on ratios.

A bracket is (last miss, first hit), in seconds or samples; a last miss of 0: the first evaluation already hit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from repro.stats.interval import Interval, from_log, t_quantile
from repro.stats.sample import check_level, mean

Bracket = tuple[float, float]


def bracket_bias(brackets: Sequence[Bracket]) -> float:
    """Return the largest bias of taking first hits as crossings, which can only make times too long: their geometric
    mean over the least that of the crossings can be, less 1; infinite if a run hit at its first evaluation.

    Raises:
        ValueError: no bracket, or one that is not 0 <= last miss < first hit, finite.
    """
    low, high = _sides(brackets)
    return math.inf if np.any(low == 0) else from_log(mean(np.log(high / low))) - 1


def range_interval(ranges: Sequence[tuple[float, float]], level: float = 0.95) -> tuple[float, Interval]:
    """Return (midpoint, interval) of a ratio over pairs of which each log is known to a range only.

    The interval contains the t interval of every set of values in the ranges, so it covers at least `level` however
    coarse the grid. With x the log of pair i, m the midpoint of its range and h half its width: mean(x) >= mean(m) -
    mean(h), and by the triangle inequality the centred norm of x is at most that of m plus the norm of h.

    Raises:
        ValueError: fewer than two pairs, or a range that is not finite.
    """
    table = np.asarray(ranges, dtype=float).reshape(-1, 2)
    if len(table) < 2 or not np.all(np.isfinite(table)):
        raise ValueError("needs at least two pairs, each with a finite range")
    least, most = table[:, 0], table[:, 1]
    middle, half = (least + most) / 2, (most - least) / 2
    count = len(middle)
    reach = mean(half) + t_quantile(0.5 + check_level(level) / 2, count - 1) * _largest_error(middle, half)
    centre = mean(middle)
    return from_log(centre), Interval(from_log(centre - reach), from_log(centre + reach), level)


def bracket_welch(candidate: Sequence[Bracket], baseline: Sequence[Bracket], level: float = 0.95) -> Interval:
    """Return the interval of the ratio of crossings of two independent samples: `range_interval` without pairs.

    Each side's standard error is the largest that its brackets allow; the degrees of freedom are the smaller side's,
    which is never too many.

    Raises:
        ValueError: as `bracket_bias`, fewer than two on a side, or a run that hit at its first evaluation.
    """
    sides = _sides(candidate), _sides(baseline)
    if min(len(low) for low, _ in sides) < 2 or any(np.any(low == 0) for low, _ in sides):
        raise ValueError("needs two brackets a side, and no run that hit at its first evaluation")
    middles = [(np.log(low) + np.log(high)) / 2 for low, high in sides]
    halves = [(np.log(high) - np.log(low)) / 2 for low, high in sides]
    error = math.hypot(*(_largest_error(middle, half) for middle, half in zip(middles, halves, strict=True)))
    freedom = min(len(middle) for middle in middles) - 1
    reach = mean(halves[0]) + mean(halves[1]) + t_quantile(0.5 + check_level(level) / 2, freedom) * error
    centre = mean(middles[0]) - mean(middles[1])
    return Interval(from_log(centre - reach), from_log(centre + reach), level)


def _largest_error(middle: np.ndarray, half: np.ndarray) -> float:
    """Return the largest standard error of the mean of values that lie within `half` of `middle`."""
    count = len(middle)
    return float(np.linalg.norm(middle - mean(middle)) + np.linalg.norm(half)) / math.sqrt((count - 1) * count)


def _sides(brackets: Sequence[Bracket]) -> tuple[np.ndarray, np.ndarray]:
    table = np.asarray(brackets, dtype=float)
    if table.ndim != 2 or table.shape[1] != 2 or not len(table):
        raise ValueError("needs at least one bracket of two numbers, last miss and first hit")
    low, high = table[:, 0], table[:, 1]
    if not np.all(np.isfinite(table)) or np.any(low < 0) or np.any(high <= low):
        raise ValueError("a bracket is 0 <= last miss < first hit, both finite")
    return low, high
