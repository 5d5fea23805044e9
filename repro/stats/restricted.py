"""Mean time to a horizon, of runs of which some missed: what a user waits who gives up at the horizon."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from repro.stats.interval import Interval
from repro.stats.sample import check_level, spread
from repro.stats.survival import kaplan_meier, runs

Outcomes = tuple[Sequence[float], Sequence[bool]]
"""(times, reached), one a run: time to the target, or how long the run was watched in vain."""
SHARES, TIMES = 40, 250
"""Points of the two pivots over which the interval is taken: 10,000 products."""


def restricted_mean(
    times: Sequence[float], reached: Sequence[bool], horizon: float, level: float = 0.95
) -> tuple[float, Interval]:
    """E[min(T, horizon)]: area above Kaplan-Meier's curve of P(reached by t) up to the horizon, with an interval.

    A run that misses counts as the horizon, so the estimand is p m + (1 - p) horizon with p the probability to reach by
    the horizon and m the mean time of the runs that do. The textbook interval (Greenwood's variance, normal) does not
    cover at n = 5: most samples of five hold none of the 10 % that miss. This one is a generalised interval (Weerahandi
    1993; for means with a lump of probability: Tian 2005, Statistics in Medicine 24:3223): p's pivot is Jeffreys' Beta,
    m's is Student's t, and the quantiles of what they give are taken on a fixed grid, so nothing is drawn. It reckons
    with misses that have not been seen, so it covers more than `level` where none can happen (docs/method.md).

    A run that diverged never reaches: give it the horizon as its time, not reached.

    Raises:
        ValueError: as `survival.runs`; a run was watched for less than the horizon; fewer than two runs reached the
            target by the horizon, or all at one time; a horizon that is not positive.
    """
    value, draws = _pivot(times, reached, horizon)
    check_level(level)
    low, high = np.quantile(draws, [0.5 - level / 2, 0.5 + level / 2])
    return value, Interval(min(float(low), value), max(float(high), value), level)


def restricted_ratio(
    candidate: Outcomes, baseline: Outcomes, horizon: float, level: float = 0.95
) -> tuple[float, Interval]:
    """Ratio of the restricted mean times of two independent cells up to one horizon; below 1: less waiting.

    The estimand is E[min(T_candidate, horizon)] / E[min(T_baseline, horizon)]. It is no ratio of times to target: both
    means are at most the horizon, so where runs miss it is pulled to 1, and it changes with the horizon. It claims
    which cell costs less waiting up to this horizon, and no more. The interval joins the two of `restricted_mean` on
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
    return above / below, Interval(math.exp(low), math.exp(high), level)


def watched_horizon(times: Sequence[float], reached: Sequence[bool]) -> float:
    """The largest horizon that every run was watched up to: the shortest run that missed, else the longest time.

    Raises:
        ValueError: as `survival.runs`.
    """
    array, hits = runs(times, reached)
    return float(array.max() if np.all(hits) else array[~hits].min())


def restricted_area(times: Sequence[float], reached: Sequence[bool], horizon: float) -> float:
    """Area above Kaplan-Meier's curve up to the horizon; runs may have been cut off before it.

    Raises:
        ValueError: as `survival.runs`, a horizon that is not positive, or one past the last time watched while the
            curve has not reached 1.
    """
    if not (math.isfinite(horizon) and horizon > 0):
        raise ValueError(f"a horizon is a positive finite time, not {horizon}")
    curve = kaplan_meier(times, reached)
    curve.at(horizon)
    steps = [(time, share) for time, share in zip(curve.times, curve.reached_by, strict=True) if time < horizon]
    ends = [*[time for time, _ in steps], horizon]
    going = [1.0, *[1 - share for _, share in steps]]
    return math.fsum(share * (end - start) for share, start, end in zip(going, [0.0, *ends], ends, strict=False))


def _pivot(times: Sequence[float], reached: Sequence[bool], horizon: float) -> tuple[float, np.ndarray]:
    array, hits = runs(times, reached)
    value = restricted_area(times, reached, horizon)
    if np.any(~hits & (array < horizon)):
        raise ValueError(f"a run was watched for less than the horizon of {horizon:g}; an interval needs one up to "
                         f"which all were, at most {watched_horizon(times, reached):g}")
    within = array[hits & (array <= horizon)]
    if len(within) < 2:
        raise ValueError(f"{len(within)} run(s) reached the target by the horizon; an interval needs at least two")
    error = spread(within, "a restricted mean") / math.sqrt(len(within))
    shares, quantiles = _grid(len(within), len(array))
    means = np.clip(float(np.mean(within)) + error * quantiles, 0.0, horizon)
    floor = float(np.min(within)) / len(within)  # a mean of positive times is above 0, so that its log exists
    means = np.maximum(means, min(floor, horizon))
    return value, (shares[:, None] * means[None, :] + (1 - shares[:, None]) * horizon).ravel()


@lru_cache(maxsize=256)
def _grid(reached: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Equally likely values of p's pivot, Beta(k + 1/2, n - k + 1/2), and of Student's t with k - 1 degrees."""
    from scipy.special import betaincinv, stdtrit

    shares = betaincinv(reached + 0.5, count - reached + 0.5, (np.arange(SHARES) + 0.5) / SHARES)
    return shares, stdtrit(reached - 1, (np.arange(TIMES) + 0.5) / TIMES)
