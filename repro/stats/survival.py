"""Times to a target that some runs missed: the curve of P(reached by t), its comparison, competing events."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from repro.stats.sample import finite

Steps = tuple[tuple[float, float], ...]
"""(time, share from there on), by time."""
EXACT_RUNS = 30
"""Runs of both cells together up to which the log-rank test counts all ways to assign them: 15 against 15."""


@dataclass(frozen=True, slots=True)
class Survival:
    """Kaplan-Meier's curve, with a step at each time at which a run reached the target."""

    times: tuple[float, ...]
    reached: tuple[int, ...]
    """Runs that reached the target at each of these times."""
    at_risk: tuple[int, ...]
    """Runs still watched immediately before."""
    reached_by: tuple[float, ...]
    """P(reached by t) from this time on."""
    last: float
    """The longest time that any run was watched; beyond it nothing is known."""

    def at(self, time: float) -> float:
        """Return P(reached by `time`).

        Raises:
            ValueError: beyond the longest time that any run was watched while some had not reached the target.
        """
        before = sum(step <= time for step in self.times)
        share = self.reached_by[before - 1] if before else 0.0
        if time > self.last and share < 1:
            raise ValueError(f"no run was watched up to {time:g}, only to {self.last:g}")
        return share


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


def kaplan_meier(times: Sequence[float], reached: Sequence[bool]) -> Survival:
    """Kaplan & Meier (1958). A run that missed counts as watched up to its time, inclusive.

    Pass a run that can never reach the target (it diverged) with the longest time of all runs, because it was at risk
    all the time; or use `cumulative_incidence`.

    With times from an evaluation grid the curve is exact at the evaluations; between them the true one may be higher,
    never lower, so medians and means are too long by at most one evaluation (`bracket_bias`).

    Raises:
        ValueError: as `runs`.
    """
    array, flags = runs(times, reached)
    hits, together = np.unique(array[flags], return_counts=True)
    if not len(hits):
        return Survival((), (), (), (), float(array.max()))
    at_risk = len(array) - np.searchsorted(np.sort(array), hits, side="left")
    return Survival(
        times=tuple(hits.tolist()), reached=tuple(together.tolist()), at_risk=tuple(at_risk.tolist()),
        reached_by=tuple((1.0 - np.cumprod(1.0 - together / at_risk)).tolist()), last=float(array.max()),
    )


def median_time(survival: Survival) -> float | None:
    """Return the first time by which half of the runs have reached the target; None: not reached."""
    return next((time for time, share in zip(survival.times, survival.reached_by, strict=True) if share >= 0.5 - 1e-12),
                None)


def log_rank(
    times_a: Sequence[float], reached_a: Sequence[bool], times_b: Sequence[float], reached_b: Sequence[bool]
) -> tuple[float, float]:
    """Return (chi-square statistic, p) of the log-rank test that both curves are equal (Mantel 1966; Peto & Peto 1972).

    The statistic is the textbook's, but p does not come from its chi-square distribution, which rejects too often at
    small n (docs/method.md). Up to 30 runs p is exact: the share of all assignments of the runs to the two cells whose
    |observed - expected| is at least the one seen. Beyond that it is the normal approximation of this share, with the
    variance over all assignments. Both require that the two cells were watched alike.

    Raises:
        ValueError: as `runs`, or no run reached the target.
    """
    (first, hits_a), (second, hits_b) = runs(times_a, reached_a), runs(times_b, reached_b)
    times, hits = np.concatenate([first, second]), np.concatenate([hits_a, hits_b])
    if not np.any(hits):
        raise ValueError("no run reached the target, so there is nothing to compare")
    scores = _log_rank_scores(times, hits)
    if np.max(np.abs(scores - np.mean(scores))) < 1e-12:
        return 0.0, 1.0  # all at one time: every assignment of the runs is equal
    statistic = _mantel(times, hits, first, hits_a)
    if statistic is None:
        return 0.0, 1.0  # one cell was never watched when a run of the other reached: no variance, no evidence
    return statistic, _dealt(scores, len(first)) if len(times) <= EXACT_RUNS else _dealt_normal(scores, len(first))


def _mantel(times: np.ndarray, hits: np.ndarray, first: np.ndarray, hits_a: np.ndarray) -> float | None:
    """Return (observed - expected)^2 over its hypergeometric variance, of the first cell; None without a variance."""
    when, together = np.unique(times[hits], return_counts=True)
    risk, risk_a = (len(side) - np.searchsorted(np.sort(side), when, side="left") for side in (times, first))
    expected = float(np.sum(together * risk_a / risk))
    several = risk > 1  # the last run at risk has no variance
    parts = together * risk_a * (risk - risk_a) * (risk - together)
    variance = float(np.sum(parts[several] / (risk[several] ** 2 * (risk[several] - 1))))
    return (int(np.sum(hits_a)) - expected) ** 2 / variance if variance > 0 else None


def _log_rank_scores(times: np.ndarray, hits: np.ndarray) -> np.ndarray:
    """Return each run's share in observed - expected: 1 if it reached, less the pooled Nelson-Aalen hazard up to its
    time."""
    when, together = np.unique(times[hits], return_counts=True)
    hazard = np.cumsum(together / (len(times) - np.searchsorted(np.sort(times), when, side="left")))
    return np.asarray(hits - np.concatenate([[0.0], hazard])[np.searchsorted(when, times, side="right")])


def _dealt(scores: np.ndarray, count: int) -> float:
    """Return the share of all ways to choose `count` runs whose summed score is at least as far from 0 as that of the
    first.

    Every choice is one from each half of the runs: sums of one half are looked up among the sorted sums of the other.
    """
    reach = abs(float(scores[:count].sum())) - 1e-9
    if reach <= 0:
        return 1.0
    half = len(scores) // 2
    far, extreme = _subset_sums(scores[half:]), 0
    for size, sums in enumerate(_subset_sums(scores[:half])):
        if 0 <= count - size < len(far):
            rest = far[count - size]
            extreme += int(np.sum(len(rest) - np.searchsorted(rest, reach - sums, side="left")))
            extreme += int(np.sum(np.searchsorted(rest, -reach - sums, side="right")))
    return extreme / math.comb(len(scores), count)


def _dealt_normal(scores: np.ndarray, count: int) -> float:
    """Approximate `_dealt` for many runs: a sum drawn without replacement, of mean 0."""
    total = len(scores)
    variance = count * (total - count) / (total * (total - 1)) * float(np.sum((scores - np.mean(scores)) ** 2))
    return math.erfc(abs(float(scores[:count].sum())) / math.sqrt(2 * variance))


def _subset_sums(scores: np.ndarray) -> list[np.ndarray]:
    """Return the sorted sums of all subsets, by the size of the subset."""
    sums, sizes = np.zeros(1), np.zeros(1, dtype=int)
    for score in scores:
        sums, sizes = np.concatenate([sums, sums + score]), np.concatenate([sizes, sizes + 1])
    return [np.sort(sums[sizes == size]) for size in range(len(scores) + 1)]


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
