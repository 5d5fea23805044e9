"""Times to a target that some runs missed: P(reached by t), its comparison, competing events, mean times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from repro.stats.interval import Interval, from_log
from repro.stats.sample import check_level, finite, spread

Steps = tuple[tuple[float, float], ...]
"""(time, share from there on), by time."""
EXACT_RUNS = 100
"""Runs of both cells together up to which the log-rank test counts all ways to assign them."""
CELLS = 1 << 20
"""Cells of the table in which it counts them, by how many runs are chosen and by their rounded sum."""


def runs(times: Sequence[float], reached: Sequence[bool]) -> tuple[np.ndarray, np.ndarray]:
    """Return arrays of times and of flags: True for a time to the target, False for how long the run was watched.

    Raises:
        ValueError: no run, lengths differ, a time not finite or negative.
    """
    array, flags = finite(times, "times"), np.asarray(reached, dtype=bool)
    if array.shape != flags.shape or not len(array):
        raise ValueError(f"needs as many times as outcomes, at least one, not {len(array)} and {flags.size}")
    if np.any(array < 0):
        raise ValueError("times cannot be negative")
    return array, flags


def kaplan_meier(times: Sequence[float], reached: Sequence[bool]) -> Steps:
    """Return P(reached by t), a step at each time at which a run reached the target (Kaplan & Meier 1958).

    A run that missed counts as watched up to its time, inclusive.
    Pass a run that can never reach the target (it diverged) with the longest time of all runs, because it was at risk
    all the time; or use `cumulative_incidence`.

    With times from an evaluation grid the curve is exact at the evaluations; between them the true one may be higher,
    never lower, so medians and means are too long by at most one evaluation (`bracket_bias`).

    Raises:
        ValueError: as `runs`.
    """
    array, flags = runs(times, reached)
    hits, together = np.unique(array[flags], return_counts=True)
    at_risk = len(array) - np.searchsorted(np.sort(array), hits, side="left")
    return tuple(zip(hits.tolist(), (1.0 - np.cumprod(1.0 - together / at_risk)).tolist(), strict=True))


def log_rank(
    times_a: Sequence[float], reached_a: Sequence[bool], times_b: Sequence[float], reached_b: Sequence[bool]
) -> tuple[float, float]:
    """Return (chi-square statistic, p) of the log-rank test that both curves are equal (Mantel 1966; Peto & Peto 1972).

    The statistic is scipy's, and so is p beyond 100 runs. Up to 100 runs p is exact, because that of the chi-square
    distribution rejects too often there (docs/method.md): the share of all assignments of the runs to the two cells
    whose |observed - expected| is at least the one seen. Both require that the two cells were watched alike.

    Raises:
        ValueError: as `runs`, or no run reached the target.
    """
    from scipy.stats import CensoredData, logrank

    (first, hits_a), (second, hits_b) = runs(times_a, reached_a), runs(times_b, reached_b)
    times, hits = np.concatenate([first, second]), np.concatenate([hits_a, hits_b])
    if not np.any(hits):
        raise ValueError("no run reached the target, so there is nothing to compare")
    # Each run's share in observed - expected: 1 if it reached, less the pooled Nelson-Aalen hazard up to its time.
    when, together = np.unique(times[hits], return_counts=True)
    hazard = np.cumsum(together / (len(times) - np.searchsorted(np.sort(times), when, side="left")))
    scores = np.asarray(hits - np.concatenate([[0.0], hazard])[np.searchsorted(when, times, side="right")])
    if np.max(np.abs(scores - np.mean(scores))) < 1e-12:
        return 0.0, 1.0  # all at one time: every assignment of the runs is equal
    one, other = (CensoredData(side[mark], right=side[~mark]) for side, mark in ((first, hits_a), (second, hits_b)))
    with np.errstate(invalid="ignore", divide="ignore"):
        found = logrank(one, other)
    if not math.isfinite(found.statistic):
        return 0.0, 1.0  # one cell was never watched when a run of the other reached: no variance, no evidence
    p = _dealt(scores, len(first)) if len(times) <= EXACT_RUNS else float(found.pvalue)
    return float(found.statistic)**2, p


def _dealt(scores: np.ndarray, count: int) -> float:
    """Return the share of all ways to choose `count` runs whose summed score is at least as far from its mean as that
    of the first.

    Scores are rounded to a grid; a sum within two of its points of the first counts as far enough, because equal sums
    may be rounded apart.
    """
    fewer = min(count, len(scores) - count)
    points = CELLS // (fewer + 1)
    levels = np.rint((scores - scores.min()) / (fewer * float(np.ptp(scores))) * points).astype(int)
    ways = np.zeros((fewer + 1, points + fewer + 1))
    ways[0, 0] = 1
    for level in levels:
        ways[1:, level:] += ways[:-1, :ways.shape[1] - level]
    chosen = levels[:count] if fewer == count else levels[count:]
    distances = np.abs(len(scores) * np.arange(ways.shape[1]) - fewer * levels.sum())
    reach = abs(len(scores) * chosen.sum() - fewer * levels.sum()) - 2 * len(scores)
    return min(1.0, float(ways[fewer, distances >= reach].sum() / math.comb(len(scores), fewer)))


def cumulative_incidence(times: Sequence[float], causes: Sequence[str | None]) -> dict[str, Steps]:
    """Return Aalen & Johansen's share of runs that ended by each cause by time t; the causes compete.

    Args:
        times: when each run ended.
        causes: for example "reached" and "diverged"; None: still running at that time.

    Returns:
        cause -> its steps, at all times at which a run ended by any cause. At any time the shares of all causes and of
        the runs that go on sum to 1.

    Raises:
        ValueError: as `runs`.
    """
    array, ended = runs(times, [cause is not None for cause in causes])
    names = sorted({cause for cause in causes if cause is not None})
    going, shares = 1.0, dict.fromkeys(names, 0.0)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    labels = np.array([cause or "" for cause in causes], dtype=object)
    for time in np.unique(array[ended]).tolist():
        now, risk = (array == time) & ended, int(np.sum(array >= time))
        for name in names:
            shares[name] += going * int(np.sum(now & (labels == name))) / risk
            found[name].append((time, shares[name]))
        going *= 1 - int(np.sum(now)) / risk
    return {name: tuple(steps) for name, steps in found.items()}


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
    if not (math.isfinite(horizon) and horizon > 0):
        raise ValueError(f"a horizon is a positive finite time, not {horizon}")
    if np.any(~hits & (array < horizon)):
        raise ValueError(f"a run was watched for less than the horizon of {horizon:g}; an interval needs one up to "
                         f"which all were, at most {array[~hits].min():g}")
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


@lru_cache(maxsize=256)
def _grid(reached: int, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return equally likely values: of p's pivot for the low end and for the high end, and of Student's t, k - 1
    degrees."""
    from scipy.special import betaincinv, stdtrit

    missed, middle = count - reached, (np.arange(SHARES) + 0.5) / SHARES
    many = betaincinv(reached + 0.75, missed + 0.25, middle) if missed else np.ones(SHARES)
    few = betaincinv(reached + 0.25, missed + 0.75, middle)
    return many, few, stdtrit(reached - 1, (np.arange(TIMES) + 0.5) / TIMES)
