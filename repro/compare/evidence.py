"""Everything that can be said of two cells by themselves; which verdict it carries depends on the family and comes
after."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from repro import stats
from repro.compare import drift
from repro.compare.cells import ComparedCell, factors_of
from repro.compare.figures import Estimate, Pair, Restricted, Split, bounds
from repro.compare.metric import NOT_A_RESULT, SCALES, MetricSpec
from repro.compare.missed import Missed, missed
from repro.compare.pairing import Side, pairs_of, side, void
from repro.compare.split import split_of
from repro.core import pattern
from repro.record.results import Result
from repro.suite.model import MARGIN, Metric

T = TypeVar("T")
EXACT_PAIRS = 20
"""Up to here all 2^n sign flips are counted."""
NO_SPREAD = 1e-12
"""Standard deviation of log ratios below which it is rounding, not spread."""


@dataclass(frozen=True, slots=True)
class ComparisonRequest:
    """What a comparison is asked to do, declared before the results."""

    metric: Metric
    primary: bool = False
    planned: int | None = None
    """Pairs that the plan asks for: while some are missing there is no verdict, as who may stop at a good moment can
    choose it."""
    margin: float = MARGIN
    horizon: float | None = None
    paired: bool = True
    refusals: tuple[str, ...] = ()
    """Why there is to be no verdict, found outside (drift)."""
    withhold: bool = True
    """Give no figure either where there is to be no verdict; False for published results, whose rules show them."""
    cautions: tuple[str, ...] = ()

    @property
    def scale(self) -> MetricSpec:
        return SCALES[self.metric]


@dataclass(frozen=True, slots=True)
class Evidence:
    """Two cells, side by side."""

    candidate: ComparedCell
    baseline: ComparedCell
    asked: ComparisonRequest
    ours: Side
    theirs: Side
    pairs: tuple[Pair, ...]
    n: int
    refusal: str = ""
    """Why there can be no verdict; "" where there can."""
    settles: str = ""
    ratio: float | None = None
    interval: stats.Interval | None = None
    p: float | None = None
    floor: float = 1.0
    """Smallest p that an exact test can give with so many trials."""
    equivalence: stats.Equivalence | None = None
    less: int = 0
    """Pairs in which the candidate's figure is the smaller one."""
    more: int = 0
    welch: Estimate | None = None
    split: Split | None = None
    probability_less: Estimate | None = None
    missed: Missed | None = None
    grid: float | None = None
    """Metric samples only: how far apart evaluations lie at the target, relative."""
    grid_interval: stats.Interval | None = None
    """Metric samples only: of the ratio, wherever between two evaluations the crossings lie."""
    grids: str = ""
    """Metric samples only: how the evaluation grids of the two differ; "" where they are alike."""
    apart: bool = True
    """False: metric samples on unlike grids, which alone could make the ratio (95 % interval of the crossings)."""

    @property
    def logs(self) -> list[float]:
        found = stats.log_ratios([pair.candidate for pair in self.pairs], [pair.baseline for pair in self.pairs])
        return [float(value) for value in found]

    @property
    def restricted(self) -> Restricted | None:
        return self.missed.restricted if self.missed else None


def examine(
    candidate: ComparedCell, baseline: ComparedCell, candidate_results: Sequence[Result],
    baseline_results: Sequence[Result], asked: ComparisonRequest,
) -> Evidence:
    """One candidate against one baseline; the order of the results never matters."""
    ours, theirs = side("the candidate", candidate_results, asked.scale), side("the baseline", baseline_results,
                                                                                asked.scale)
    base = Evidence(candidate, baseline, asked, ours, theirs, (), 0)
    if ours.wrong or theirs.wrong:
        return replace(base, refusal=ours.wrong or theirs.wrong)
    if not asked.paired:
        return _unpaired(replace(base, n=min(ours.n, theirs.n)))
    why, name = void(ours, theirs)
    if why:
        return replace(base, refusal=why, welch=None if name == "data" else _welch(ours, theirs))
    pairs = pairs_of(ours, theirs)
    return _paired(replace(base, pairs=pairs, n=len(pairs), floor=stats.sign_flip_floor(max(1, len(pairs)))))


def _paired(base: Evidence) -> Evidence:
    asked = base.asked
    unknown = _unknown(base)
    if unknown:
        return replace(base, refusal=unknown, settles="running them again would")
    have = len(base.ours.results.keys() & base.theirs.results.keys())
    early = "" if asked.planned is None or have >= asked.planned else (
        f"{have} of {asked.planned} planned pairs have run; no verdict before all have")
    if base.ours.without or base.theirs.without:
        found = _with_missed(base)
        return replace(found, refusal=early) if early and not found.refusal else found
    if base.n < 2:
        text = f"{base.n} pair{'s' if base.n != 1 else ''} with one seed; two are the least for an interval, six for " \
               "significance"
        return replace(base, refusal=text, settles=_more(base, 6))
    found = _ratios(base)
    return replace(found, refusal=early or _outside(base), settles="running them would" if early else "")


def _unknown(base: Evidence) -> str:
    """Trials whose end says nothing of the cell, by name; or, for a metric that needs no target, that have no
    figure."""
    lost = [item for item in (base.ours, base.theirs)
            if any(not base.asked.scale.to_target or status in (*NOT_A_RESULT, "ok") for status in item.without)]
    if not lost:
        return ""
    told = " and ".join(item.told() for item in (base.ours, base.theirs) if item.without)
    if any(status in NOT_A_RESULT for item in lost for status in item.without):
        return f"{told}; a trial that broke says nothing of the {base.asked.scale.noun}, so no ratio hides it"
    return f"{told}; a ratio over the others would hide them"


def _outside(base: Evidence) -> str:
    """Reasons that do not lie in the figures."""
    if base.asked.metric == "accuracy" and _design(base) != "fixed_budget":
        return "these trials stop at their target, so their final quality is the target's; compare it under design " \
               "fixed_budget"
    return "; ".join(base.asked.refusals)


def _design(base: Evidence) -> Any:
    designs = {pattern.get(factors_of(cell), "stop.design") for cell in (base.candidate, base.baseline)}
    return designs.pop() if len(designs) == 1 else None


def _ratios(base: Evidence) -> Evidence:
    """All figures of cells whose every trial has one."""
    above, below = [pair.candidate for pair in base.pairs], [pair.baseline for pair in base.pairs]
    logs, samples = base.logs, base.asked.metric == "samples"
    grids = drift.grid_caution(list(base.ours.results.values()), list(base.theirs.results.values())) \
        if samples else ""
    crossings = _grid_interval(base, 0.95) if grids else None
    steady = float(np.std(logs, ddof=1)) < NO_SPREAD
    ratio, interval = stats.paired_ratio(above, below)
    few = base.n <= EXACT_PAIRS
    p = stats.sign_flip(logs, EXACT_PAIRS) if few or steady else stats.paired_p(above, below)
    test = None if steady else claimed(lambda: stats.tost(logs, base.asked.margin))
    return replace(
        base, ratio=ratio, interval=None if steady else interval, p=p, equivalence=test,
        less=sum(a < b for a, b in zip(above, below, strict=True)),
        more=sum(a > b for a, b in zip(above, below, strict=True)), welch=_welch(base.ours, base.theirs),
        probability_less=_ordering(base.ours, base.theirs), split=split_of(base.ours, base.theirs, base.pairs,
                                                                           base.asked.scale),
        grid=_grid(base) if samples else None, grid_interval=_grid_interval(base, 0.9) if samples else None,
        grids=grids, apart=not grids or (crossings is not None and not crossings.low <= 1 <= crossings.high),
    )


def _with_missed(base: Evidence) -> Evidence:
    found = missed(base.ours, base.theirs, base.asked.scale, base.asked.horizon)
    return replace(base, missed=found, refusal=found.refusal or _outside(base), p=found.p, less=found.first,
                   more=found.second, floor=stats.sign_flip_floor(max(1, found.n)), n=found.n)


def _unpaired(base: Evidence) -> Evidence:
    """Trials that do not share their seeds: Welch on logs."""
    unknown = _unknown(base)
    if unknown:
        return replace(base, refusal=unknown, settles="running them again would")
    if base.ours.without or base.theirs.without:
        beside = missed(base.ours, base.theirs, base.asked.scale, base.asked.horizon, paired=False)
        return replace(base, missed=beside, refusal=beside.refusal or _outside(base))
    above, below = list(base.ours.values.values()), list(base.theirs.values.values())
    if min(len(above), len(below)) < 2:
        return replace(base, refusal=f"{len(above)} and {len(below)} trials; two of each are the least for an interval")
    found = claimed(lambda: stats.welch_ratio(above, below))
    if found is None or max(float(np.std(np.log(side))) for side in (above, below)) < NO_SPREAD:
        return replace(base, refusal="all trials of each have one figure: without a spread there is no interval")
    return replace(
        base, ratio=found[0], interval=found[1], p=stats.welch_p(above, below),
        floor=2 / math.comb(len(above) + len(below), len(above)), refusal=_outside(base),
        equivalence=claimed(lambda: stats.tost_welch(above, below, base.asked.margin)),
        welch=Estimate(value=found[0], interval=bounds(found[1])),
        probability_less=_ordering(base.ours, base.theirs),
    )


def _welch(ours: Side, theirs: Side) -> Estimate | None:
    if ours.without or theirs.without:
        return None
    found = claimed(lambda: stats.welch_ratio(list(ours.values.values()), list(theirs.values.values())))
    return Estimate(value=found[0], interval=bounds(found[1])) if found else None


def _ordering(ours: Side, theirs: Side) -> Estimate | None:
    found = claimed(lambda: stats.probability_less(list(ours.values.values()), list(theirs.values.values())))
    return Estimate(value=found[0], interval=bounds(found[1])) if found else None


def _grid(base: Evidence) -> float | None:
    """How far first hits may lie above the crossings, relative; inf where an evaluation that was the first one hit."""
    brackets = [(item.bracket.miss_samples, item.bracket.hit_samples) for found in (base.ours, base.theirs)
                for item in found.results.values() if item.bracket]
    bias = claimed(lambda: stats.bracket_bias(brackets))
    return None if bias is None else math.inf if bias.share is None else bias.share


def _grid_interval(base: Evidence, level: float) -> stats.Interval | None:
    """Of the ratio of the crossings themselves: holds them wherever in their brackets they lie."""
    ours, theirs = ([found.results[pair.repeat].bracket for pair in base.pairs] for found in (base.ours, base.theirs))
    above = [(item.miss_samples, item.hit_samples) for item in ours if item]
    below = [(item.miss_samples, item.hit_samples) for item in theirs if item]
    found = claimed(lambda: stats.bracket_ratio(above, below, level))
    return found[1] if found else None


def _more(base: Evidence, wanted: int) -> str:
    count = wanted - base.n
    return f"{count} more pair{'s' if count != 1 else ''} would" if count > 0 else ""


def claimed(function: Callable[[], T]) -> T | None:
    """A figure, or None where its method says that it can claim nothing of these data."""
    try:
        return function()
    except ValueError:
        return None
