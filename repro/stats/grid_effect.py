"""The evaluation grid: a crossing is between the last miss and the first hit; the effect of that on ratios.

A bracket is (last miss, first hit), in seconds or samples; a last miss of 0: the first evaluation already hit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from repro.stats.interval import Interval, from_log, t_quantile
from repro.stats.sample import check_level, finite, mean

Bracket = tuple[float, float]


@dataclass(frozen=True, slots=True)
class GridBias:
    """The largest delay of first hits against crossings."""

    share: float | None
    """Geometric mean of the first hits over the least that of the crossings can be, less 1; None: no bound, because a
    run hit at its first evaluation."""
    mean: float
    """Mean width of a bracket, in its own unit: bounds the bias of an arithmetic mean."""
    statement: str


@dataclass(frozen=True, slots=True)
class RatioRange:
    """The range of a ratio of geometric means of crossings, given the brackets."""

    low: float
    """0 if a candidate's last miss is 0."""
    midpoint: float
    high: float
    """Infinite if a baseline's last miss is 0."""
    first_hit: float
    """The ratio with first hits as crossings; within low to high."""


def first_crossing(
    times: Sequence[float], values: Sequence[float], target: float, larger: bool = True
) -> Bracket | None:
    """Return (time of the evaluation before the first that reaches the target, or 0; time of that one). None: none
    does.

    Later evaluations may fall below again without effect (the rule of DAWNBench and MLPerf).

    Args:
        larger: True if more is better, as for accuracy.

    Raises:
        ValueError: lengths differ, a number not finite, times negative or not increasing.
    """
    when, quality = finite(times, "times"), finite(values, "values")
    if len(when) != len(quality):
        raise ValueError(f"needs as many times as values, not {len(when)} and {len(quality)}")
    if np.any(np.diff(when) <= 0) or np.any(when < 0):
        raise ValueError("times of evaluations must increase, from 0 or above")
    hits = np.flatnonzero(quality >= target if larger else quality <= target)
    if not len(hits):
        return None
    first = int(hits[0])
    return (float(when[first - 1]) if first else 0.0), float(when[first])


def bracket_bias(brackets: Sequence[Bracket]) -> GridBias:
    """Return the largest bias of taking first hits as crossings; it can only make times too long.

    Raises:
        ValueError: no bracket, or one that is not 0 <= last miss < first hit, finite.
    """
    low, high = _sides(brackets)
    width = mean(high - low)
    first = int(np.sum(low == 0))
    if first:
        problem = f"{first} of {len(low)} runs hit at their first evaluation, so the grid's bias has no bound"
        return GridBias(None, width, problem)
    share = from_log(mean(np.log(high / low))) - 1
    return GridBias(share, width, f"first hits overstate the crossings by at most {share:.2%}, never understate them")


def ratio_range(candidate: Sequence[Bracket], baseline: Sequence[Bracket]) -> RatioRange:
    """Return the ratio of geometric means at both extremes, at midpoints and at first hits: the effect of the grid
    alone.

    Chance is not part of it; `bracket_ratio` adds that.

    Raises:
        ValueError: as `bracket_bias`.
    """
    (low, high), (base_low, base_high) = _sides(candidate), _sides(baseline)

    def mean_log(values: np.ndarray) -> float:
        return -math.inf if np.any(values == 0) else mean(np.log(values))

    return RatioRange(
        low=from_log(mean_log(low) - mean_log(base_high)),
        midpoint=from_log(mean_log((low + high) / 2) - mean_log((base_low + base_high) / 2)),
        high=from_log(mean_log(high) - mean_log(base_low)) if np.all(base_low > 0) else math.inf,
        first_hit=from_log(mean_log(high) - mean_log(base_high)),
    )


def bracket_ratio(
    candidate: Sequence[Bracket], baseline: Sequence[Bracket], level: float = 0.95
) -> tuple[float, Interval]:
    """Return the ratio of crossings over pairs; it covers at least `level` for the crossings, however coarse the grid.

    The interval contains the t interval of every set of crossings that the brackets allow, so it is wide if they are.
    With x the log ratio of pair i between l_i and u_i, m its midpoint and h half its width: mean(x) >= mean(m) -
    mean(h), and by the triangle inequality the centred norm of x is at most that of m plus the norm of h.

    Raises:
        ValueError: as `bracket_bias`, fewer than two pairs, lengths differ, or a run that hit at its first evaluation.
    """
    (low, high), (base_low, base_high) = _sides(candidate), _sides(baseline)
    if len(low) != len(base_low) or len(low) < 2:
        raise ValueError(f"needs at least two pairs of brackets, not {len(low)} and {len(base_low)}")
    if np.any(low == 0) or np.any(base_low == 0):
        raise ValueError("a run that hit at its first evaluation has no lower bound, so its ratio has none")
    ranges = zip(np.log(low / base_high).tolist(), np.log(high / base_low).tolist(), strict=True)
    return range_interval(list(ranges), level)


def range_interval(ranges: Sequence[tuple[float, float]], level: float = 0.95) -> tuple[float, Interval]:
    """Return (midpoint, interval) of a ratio over pairs of which each log is known to a range only, as `bracket_ratio`.

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
    """Return the interval of the ratio of crossings of two independent samples: `bracket_ratio` without pairs.

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
