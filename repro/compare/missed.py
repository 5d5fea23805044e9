"""Two cells of which some trials did not reach their target: who was first, and the mean time up to a horizon."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from repro import stats
from repro.compare.figures import Restricted, bounds
from repro.compare.metric import MetricSpec, Observation, course
from repro.compare.pairing import Side


@dataclass(frozen=True, slots=True)
class Missed:
    """What can be said although no ratio of times exists."""

    refusal: str = ""
    n: int = 0
    """Pairs."""
    first: int = 0
    """Pairs in which the candidate is known to have been first."""
    second: int = 0
    p: float | None = None
    """Sign test over the pairs whose order is known: exact, whatever the times are."""
    restricted: Restricted | None = None
    no_mean: str = ""
    """Why there is no restricted mean."""
    log_rank_p: float | None = None
    all_of: str = ""
    """`the candidate` or `the baseline`, where none of its trials reached the target and all others did."""


def missed(ours: Side, theirs: Side, scale: MetricSpec, horizon: float | None, paired: bool = True) -> Missed:
    """Compare with missed, diverged, timed-out and out-of-memory runs kept in.

    A run that diverged or ran out of memory never reaches the target. One that used up its budget, or its time limit,
    might have: it is watched up to its end.

    Args:
        horizon: up to where times are compared; None: as far as every run was watched.
    """
    a = {repeat: course(item, scale) for repeat, item in ours.results.items()}
    b = {repeat: course(item, scale) for repeat, item in theirs.results.items()}
    every = [*a.values(), *b.values()]
    unseen = sum(item.kind == "unknown" for item in every)
    if unseen:
        return Missed(f"of {unseen} trials that did not reach the target it is not recorded how long they were watched")
    shared = sorted(a.keys() & b.keys())
    if len(a) < 2 or len(b) < 2 or (paired and len(shared) < 2):
        return Missed(f"{ours.name} ran {len(a)} times and {theirs.name} {len(b)}, and not all reached the target; two "
                      "of each are the least")
    hits = [sum(item.kind == "reached" for item in cell.values()) for cell in (a, b)]
    if not any(hits):
        return Missed(f"no trial of either cell reached the target: {ours.told()}; {theirs.told()}", n=len(shared))
    first = sum(_before(a[repeat], b[repeat]) for repeat in shared) if paired else 0
    second = sum(_before(b[repeat], a[repeat]) for repeat in shared) if paired else 0
    empty = ours.name if not hits[0] else theirs.name if not hits[1] else ""
    mean = "" if empty else _restricted(list(a.values()), list(b.values()), horizon)
    return Missed(
        n=len(shared), first=first, second=second, p=_sign_test(first, second) if paired else None,
        restricted=None if isinstance(mean, str) else mean, no_mean=mean if isinstance(mean, str) else "",
        log_rank_p=_log_rank(list(a.values()), list(b.values())), all_of=empty,
    )


def _before(one: Observation, other: Observation) -> bool:
    """Whether the first is known to have reached the target before the second."""
    if one.kind != "reached":
        return False
    return one.at < other.at if other.kind == "reached" else one.at <= other.at


def _sign_test(first: int, second: int) -> float:
    """Two-sided exact p of `either is first equally often`, over the pairs whose order is known."""
    from scipy.stats import binomtest

    return float(binomtest(first, first + second).pvalue) if first + second else 1.0


def censored(courses: Sequence[Observation]) -> tuple[list[float], list[bool]]:
    """(times, reached): a run that never can reach the target is watched for as long as any run was."""
    last = max((item.at for item in courses if item.kind != "never"), default=0.0)
    return [min(item.at, last) for item in courses], [item.kind == "reached" for item in courses]


def common_horizon(courses: Sequence[Observation]) -> float:
    """As far as every run was watched; the longest time to the target where none was cut off."""
    watched = [item.at for item in courses if item.kind == "watched"]
    return min(watched) if watched else max((item.at for item in courses if item.kind == "reached"), default=0.0)


def _restricted(a: Sequence[Observation], b: Sequence[Observation], horizon: float | None) -> Restricted | str:
    """The ratio of mean times up to the horizon, or why there is none."""
    common = common_horizon([*a, *b])
    at = horizon if horizon is not None else common
    if any(item.kind == "watched" and item.at < at for item in (*a, *b)):
        return f"the declared horizon of {at:g} lies beyond {common:g}, up to where all runs were watched"
    (times_a, reached_a), (times_b, reached_b) = cut(a, at), cut(b, at)
    try:
        ratio, interval = stats.restricted_ratio((times_a, reached_a), (times_b, reached_b), at)
    except ValueError as error:
        return str(error)
    return Restricted(
        horizon=at, declared=horizon is not None, ratio=ratio, interval=bounds(interval),
        candidate_mean=sum(times_a) / len(times_a), baseline_mean=sum(times_b) / len(times_b),
    )


def cut(courses: Sequence[Observation], horizon: float) -> tuple[list[float], list[bool]]:
    """Times and whether the target was reached, looking no further than the horizon, up to which all were watched."""
    return ([min(item.at, horizon) for item in courses],
            [item.kind == "reached" and item.at <= horizon for item in courses])


def _log_rank(a: Sequence[Observation], b: Sequence[Observation]) -> float | None:
    times, reached = censored([*a, *b])
    first = len(a)
    try:
        with np.errstate(invalid="ignore", divide="ignore"):
            statistic, p = stats.log_rank(times[:first], reached[:first], times[first:], reached[first:])
    except ValueError:
        return None
    # No variance: whenever a run reached the target, only runs of one cell were still watched.
    return p if math.isfinite(statistic) else None
