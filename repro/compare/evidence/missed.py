"""Two cells with trials that missed the target: which trial of each pair was first, and mean times to a horizon."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from repro import stats
from repro.compare.evidence.grid import span_of
from repro.compare.evidence.pairing import CellTrials, Observation, Observed, observe
from repro.compare.figures import Restricted, bounds
from repro.core.numbers import plain_sum
from repro.suite.metrics import MetricSpec


@dataclass(frozen=True, slots=True)
class Missed:
    """Figures that exist although no ratio of times does."""

    refusal: str = ""
    n: int = 0
    """Pairs."""
    first: int = 0
    """Pairs in which the candidate was certainly first."""
    second: int = 0
    p: float | None = None
    """Exact sign test over the pairs whose order is known; of an open-ended design the e-process."""
    less: bool | None = None
    """The e-process, in which the sizes of ratios count, is on the candidate's taking less; None: the sign test."""
    restricted: Restricted | None = None
    no_mean: str = ""
    """Reason for a missing restricted mean."""
    log_rank_p: float | None = None
    alone: tuple[int, int] = (0, 0)
    """Pairs in which only the candidate, or only the baseline, reached the target."""
    all_of: str = ""
    """`the candidate` or `the baseline` if none of its trials reached the target and some others did."""


def missed(
    ours: CellTrials, theirs: CellTrials, scale: MetricSpec, horizon: float | None, paired: bool = True,
    like_grids: bool = True,
) -> Missed:
    """Compare with missed, diverged, timed-out and out-of-memory runs kept in.

    A run that diverged or ran out of memory never reaches the target. One that used up its budget or its time limit
    might have: it counts as watched until its end.

    Args:
        horizon: up to where times are compared; None: as far as every run was watched.
        like_grids: both cells are evaluated alike, so that first hits have the order of the crossings.
    """
    a = {repeat: observe(item, scale) for repeat, item in ours.results.items()}
    b = {repeat: observe(item, scale) for repeat, item in theirs.results.items()}
    if unseen := sum(item.kind == "unknown" for item in (*a.values(), *b.values())):
        return Missed(f"the record does not say how long {unseen} trials that missed the target were observed")
    shared = sorted(a.keys() & b.keys())
    if len(a) < 2 or len(b) < 2 or (paired and len(shared) < 2):
        return Missed(f"{ours.name} has {len(a)} trials and {theirs.name} {len(b)}, and not all reached the target; a "
                      "comparison needs two of each")
    hits = [sum(item.kind == "reached" for item in cell.values()) for cell in (a, b)]
    if not any(hits):
        ends = f"{ours.without_words()}; {theirs.without_words()}"
        return Missed(f"no trial of either cell reached the target: {ends}", n=len(shared))
    first, second = (sum(_before(one[repeat], other[repeat], None if like_grids else _earliest(
        cell.results[repeat], other[repeat], scale)) for repeat in shared) if paired else 0
        for one, other, cell in ((a, b, theirs), (b, a, ours)))
    alone = (sum(_alone(a[repeat], b[repeat]) for repeat in shared),
             sum(_alone(b[repeat], a[repeat]) for repeat in shared))
    empty = ours.name if not hits[0] else theirs.name if not hits[1] else ""
    mean = "" if empty else _restricted(list(a.values()), list(b.values()), horizon)
    return Missed(
        n=len(shared), first=first, second=second, alone=alone if paired else (0, 0),
        p=sign_test(first, second) if paired else None,
        restricted=None if isinstance(mean, str) else mean, no_mean=mean if isinstance(mean, str) else "",
        log_rank_p=_log_rank(list(a.values()), list(b.values())), all_of=empty,
    )


def _before(one: Observation, other: Observation, earliest: float | None) -> bool:
    """Return True if the first certainly reached the target before the second.

    Args:
        earliest: when the second may have crossed its target; None: on equal grids first hits have the same order.
    """
    if one.kind != "reached" or other.kind != "reached":
        return one.kind == "reached" and one.at <= other.at
    return one.at < other.at if earliest is None else one.at <= earliest


def _earliest(result: Observed, seen: Observation, scale: MetricSpec) -> float:
    span = span_of(result, scale, seen.at) if seen.kind == "reached" else None
    return span[0] if span else 0.0


def _alone(one: Observation, other: Observation) -> bool:
    return one.kind == "reached" and other.kind != "reached"


@lru_cache(maxsize=4096)  # a record has many contrasts and few counts
def sign_test(first: int, second: int) -> float:
    """Return the two-sided exact p of both being equally often first, or alone at the target."""
    from scipy.stats import binomtest

    return float(binomtest(first, first + second).pvalue) if first + second else 1.0


def censored(courses: Sequence[Observation]) -> tuple[list[float], list[bool]]:
    """Return (times, reached); a run that can never reach the target counts as watched as long as the longest run."""
    last = max((item.at for item in courses if item.kind != "never"), default=0.0)
    return [min(item.at, last) for item in courses], [item.kind == "reached" for item in courses]


def common_horizon(courses: Sequence[Observation]) -> float:
    """Return how far every run was watched; the longest time to the target if none was cut off."""
    watched = [item.at for item in courses if item.kind == "watched"]
    return min(watched) if watched else max((item.at for item in courses if item.kind == "reached"), default=0.0)


def _restricted(a: Sequence[Observation], b: Sequence[Observation], horizon: float | None) -> Restricted | str:
    """Return the ratio of mean times up to the horizon, or why there is none."""
    common = common_horizon([*a, *b])
    at = horizon if horizon is not None else common
    if any(item.kind == "watched" and item.at < at for item in (*a, *b)):
        return f"the declared horizon of {at:g} is beyond {common:g}, the limit up to which all runs were observed"
    ours, theirs = cut(a, at), cut(b, at)
    try:
        ratio, interval = stats.restricted_ratio(ours, theirs, at)
    except ValueError as error:
        return str(error)
    candidate_mean, baseline_mean = (plain_sum(times) / len(times) for times, _ in (ours, theirs))
    return Restricted(horizon=at, declared=horizon is not None, ratio=ratio, interval=bounds(interval),
                      candidate_mean=candidate_mean, baseline_mean=baseline_mean)


def cut(courses: Sequence[Observation], horizon: float) -> tuple[list[float], list[bool]]:
    """Return (times, reached), cut at the horizon up to which all were watched."""
    return ([min(item.at, horizon) for item in courses],
            [item.kind == "reached" and item.at <= horizon for item in courses])


def _log_rank(a: Sequence[Observation], b: Sequence[Observation]) -> float | None:
    times, reached = censored([*a, *b])
    first = len(a)
    return stats.or_none(lambda: stats.log_rank(times[:first], reached[:first], times[first:], reached[first:])[1])
