"""Mean time to a horizon, of runs of which some missed: the waiting time of a user who gives up at the horizon."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from repro.stats.interval import Interval, from_log
from repro.stats.sample import check_level, spread
from repro.stats.survival import kaplan_meier, runs

Outcomes = tuple[Sequence[float], Sequence[bool]]
"""(times, reached), one per run: time to the target, or how long a run without it was watched."""
SHARES, TIMES = 24, 100
"""Points of the two pivots of the interval: 2,400 products."""


def restricted_mean(
    times: Sequence[float], reached: Sequence[bool], horizon: float, level: float = 0.95
) -> tuple[float, Interval]:
    """Return E[min(T, horizon)], the area above Kaplan-Meier's curve of P(reached by t) up to the horizon, with an
    interval.

    A run that misses counts as the horizon, so the estimand is p m + (1 - p) horizon with p the probability to reach by
    the horizon and m the mean time of the runs that do. The textbook interval (Greenwood's variance, normal) does not
    cover at n = 5: most samples of five hold none of the 10 % that miss. This one is a generalised interval (Weerahandi
    1993; for means with a lump: Tian 2005, Statistics in Medicine 24:3223): p's pivot is a Beta, m's is Student's t,
    and the quantiles of what they give are taken on a fixed grid, so nothing is drawn.

    The Beta is halfway between Jeffreys' Beta(k + 1/2, n - k + 1/2), with which coverage fell to 87 % if nothing
    can miss, and the corners of Clopper & Pearson, with which it was 99 %. So the claim is `level` at least, not
    `level`: a count of misses among five is too coarse for more (docs/method.md has the figures).

    A run that diverged never reaches the target: pass the horizon as its time, not reached.

    Raises:
        ValueError: as `survival.runs`; a run was watched for less than the horizon; fewer than two runs reached the
            target by the horizon, or all at one time; a horizon that is not positive.
    """
    check_level(level)
    array, hits = runs(times, reached)
    _check_horizon(horizon)
    if np.any(~hits & (array < horizon)):
        raise ValueError(f"a run was watched for less than the horizon of {horizon:g}; an interval needs one up to "
                         f"which all were, at most {watched_horizon(times, reached):g}")
    within = array[hits & (array <= horizon)]
    value = (math.fsum(within) + (len(array) - len(within)) * horizon) / len(array)  # as Kaplan-Meier's area here
    if len(within) < 2:
        raise ValueError(f"{len(within)} run(s) reached the target by the horizon; an interval needs at least two")
    error = spread(within, "a restricted mean") / math.sqrt(len(within))
    many, few, quantiles = _grid(len(within), len(array))
    # A mean of positive times is above the least of them over n, so that the logs of a ratio exist.
    means = np.clip(float(np.mean(within)) + error * quantiles, float(np.min(within)) / len(within), horizon)
    low = _quantile(np.outer(many, means) + (1 - many)[:, None] * horizon, 0.5 - level / 2)
    high = _quantile(np.outer(few, means) + (1 - few)[:, None] * horizon, 0.5 + level / 2)
    return value, Interval(min(low, value), max(high, value), level)


def _quantile(products: np.ndarray, share: float) -> float:
    """Return numpy's linear quantile of all values, to the bit, in a fifth of its time."""
    place = (products.size - 1) * share
    lower = min(int(place), products.size - 2)
    left, right = np.partition(products, (lower, lower + 1), axis=None)[lower:lower + 2].tolist()
    part = place - lower
    return float(left + (right - left) * part if part < 0.5 else right - (right - left) * (1 - part))


def restricted_ratio(
    candidate: Outcomes, baseline: Outcomes, horizon: float, level: float = 0.95
) -> tuple[float, Interval]:
    """Return the ratio of the restricted mean times of two independent cells up to one horizon; below 1: less waiting.

    The estimand is E[min(T_candidate, horizon)] / E[min(T_baseline, horizon)]. It is not a ratio of times to target:
    both means are at most the horizon, so missed runs pull it towards 1, and it changes with the horizon. It only
    claims which cell costs less waiting up to this horizon. The interval joins the two of `restricted_mean` on
    logs by MOVER (Zou & Donner 2008, Statistics in Medicine 27:1693): d - sqrt((a - a_low)^2 + (b_high - b)^2), and so
    on.

    Raises:
        ValueError: as `restricted_mean`, for either cell.
    """
    above, ours = restricted_mean(*candidate, horizon, level)
    below, theirs = restricted_mean(*baseline, horizon, level)
    a, a_low, a_high = math.log(above), math.log(ours.low), math.log(ours.high)
    b, b_low, b_high = math.log(below), math.log(theirs.low), math.log(theirs.high)
    low = a - b - math.hypot(a - a_low, b_high - b)
    high = a - b + math.hypot(a_high - a, b - b_low)
    return above / below, Interval(from_log(low), from_log(high), level)


def watched_horizon(times: Sequence[float], reached: Sequence[bool]) -> float:
    """Return the largest horizon up to which every run was watched: the shortest run that missed, else the longest
    time.

    Raises:
        ValueError: as `survival.runs`.
    """
    array, hits = runs(times, reached)
    return float(array.max() if np.all(hits) else array[~hits].min())


def restricted_area(times: Sequence[float], reached: Sequence[bool], horizon: float) -> float:
    """Return the area above Kaplan-Meier's curve up to the horizon; runs may have been cut off before it.

    Raises:
        ValueError: as `survival.runs`, a horizon that is not positive, or one past the last time watched while the
            curve has not reached 1.
    """
    _check_horizon(horizon)
    curve = kaplan_meier(times, reached)
    curve.at(horizon)
    steps = [(time, share) for time, share in zip(curve.times, curve.reached_by, strict=True) if time < horizon]
    ends = [*[time for time, _ in steps], horizon]
    going = [1.0, *[1 - share for _, share in steps]]
    return math.fsum(share * (end - start) for share, start, end in zip(going, [0.0, *ends], ends, strict=False))


def _check_horizon(horizon: float) -> None:
    if not (math.isfinite(horizon) and horizon > 0):
        raise ValueError(f"a horizon is a positive finite time, not {horizon}")


@lru_cache(maxsize=256)
def _grid(reached: int, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return equally likely values: of p's pivot for the low end and for the high end, and of Student's t, k - 1
    degrees."""
    from scipy.special import betaincinv, stdtrit

    missed, middle = count - reached, (np.arange(SHARES) + 0.5) / SHARES
    many = betaincinv(reached + 0.75, missed + 0.25, middle) if missed else np.ones(SHARES)
    few = betaincinv(reached + 0.25, missed + 0.75, middle)
    return many, few, stdtrit(reached - 1, (np.arange(TIMES) + 0.5) / TIMES)
