"""All figures of two cells. The verdict, which depends on the family, comes later."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from repro import stats
from repro.compare.cells import ComparedCell, design_of
from repro.compare.evidence.carry_over import Carry
from repro.compare.evidence.drift import Slots
from repro.compare.evidence.grid import Grid, grid_of
from repro.compare.evidence.late import Late, late_of
from repro.compare.evidence.missed import Missed, missed
from repro.compare.evidence.nodes import load_figures, node_figures, node_means, sides_of
from repro.compare.evidence.pairing import CellTrials, Observed, cell_trials, mismatch, pairs_of
from repro.compare.evidence.repeated import one_of_each, repeated_in
from repro.compare.evidence.stage import Stage, missed_stakes, stage_figures
from repro.compare.figures import (
    Adjusted,
    Advice,
    ByLoad,
    ByNode,
    CarryOver,
    Estimate,
    Pair,
    Repeated,
    TimeSplit,
    bounds,
)
from repro.compare.qualifiers import Failures, Levels
from repro.core.numbers import plain_sum
from repro.record.result.status import meaning
from repro.suite.design import FULL_BUDGET, JUDGES, LEAST_REPEATS
from repro.suite.metrics import METRICS, MetricSpec
from repro.suite.model import LEAST_NODES, MARGIN, Metric, Unit

NO_SPREAD = 1e-12
"""Standard deviation of log ratios below which it is only rounding."""
FEWEST_FOR_P90 = 20
NO_CARRY = Carry()
_MISSING = Advice(kind="missing_pairs")


@dataclass(frozen=True, slots=True)
class ComparisonRequest:
    """The part of a comparison declared before the results."""

    metric: Metric
    primary: bool = False
    planned: int | None = None
    """Pairs that the plan requires: while some are missing there is no verdict, because stopping at a good moment would
    choose it."""
    margin: float = MARGIN
    margin_declared: bool = True
    """False: given with the question, after the results were seen."""
    horizon: float | None = None
    paired: bool = True
    refusals: tuple[str, ...] = ()
    """Reasons against a verdict that come from outside the figures (drift)."""
    slots: Slots | None = None
    """Places of the pairs on a machine that drifted, for which ratios of times are adjusted."""
    withhold: bool = True
    """Without a verdict, give no figures either; False for published results, whose rules show them."""
    cautions: tuple[str, ...] = ()
    apart: frozenset[int] = frozenset()
    """Repeats whose two trials did not run in one block: no figure with a clock counts them."""
    carry: Carry = NO_CARRY
    """How much of a carry-over is in each pair."""
    nodes: Mapping[int, str] = field(default_factory=dict)
    """Repeat -> the node or lane that it ran on; {}: not in a pool."""
    alone: tuple[Sequence[Observed], Sequence[Observed]] = ((), ())
    """Trials of the candidate and of the baseline in blocks that ran with no other lane of the pool busy."""
    unit: Unit = "block"
    """What the tests count: pairs, or the mean of each node."""
    stage: Stage | None = None
    """The look at which a sequential design judges it; None: a fixed number of pairs."""

    @property
    def scale(self) -> MetricSpec:
        return METRICS[self.metric]

    @property
    def counts_nodes(self) -> bool:
        """The tests count nodes. A figure without a clock does not depend on its node."""
        return self.unit == "node" and self.scale.clocked and self.paired


@dataclass(frozen=True, slots=True)
class Evidence:
    """The figures of two cells."""

    candidate: ComparedCell
    baseline: ComparedCell
    asked: ComparisonRequest
    ours: CellTrials
    theirs: CellTrials
    pairs: tuple[Pair, ...]
    n: int
    refusal: str = ""
    """Reason for a missing verdict; "" if one is possible."""
    advice: Advice | None = None
    ratio: float | None = None
    interval: stats.Interval | None = None
    p: float | None = None
    floor: float = 1.0
    """Smallest p that this many trials can give: of the exact test of pairs; 0 for Welch's, 1 with too few for it."""
    equivalence: stats.Equivalence | None = None
    less: int = 0
    """Pairs in which the candidate's figure is the smaller one."""
    more: int = 0
    welch: Estimate | None = None
    split: TimeSplit | None = None
    probability_less: Estimate | None = None
    missed: Missed | None = None
    grid: Grid | None = None
    """For a metric known at evaluations only: what the evaluation grids leave open."""
    late: Late | None = None
    """For a clock by which statements were read late: what that leaves open."""
    left_out: tuple[int, ...] = ()
    """Repeats that are left out because their two trials did not run in one block."""
    carry_over: CarryOver | None = None
    repeated: tuple[Repeated, ...] = ()
    """Which of the two cells have fewer trainings than trials."""

    @property
    def sides(self) -> tuple[tuple[ComparedCell, CellTrials], tuple[ComparedCell, CellTrials]]:
        """The candidate and the baseline, each with its trials."""
        return (self.candidate, self.ours), (self.baseline, self.theirs)

    @property
    def design(self) -> Any:
        """The design of both cells; None if they differ in it."""
        designs = {design_of(cell) for cell in (self.candidate, self.baseline)}
        return designs.pop() if len(designs) == 1 else None

    @property
    def slots(self) -> Slots | None:
        """Places of the pairs, if the machine drifted, a clock is in the metric, and it moved the ratios at all."""
        if self.asked.slots is None or not self.asked.scale.clocked or len(self.pairs) < 2:
            return None
        steady = stats.deviation(stats.log_ratios(*sides_of(self.pairs))) < NO_SPREAD
        return None if steady else self.asked.slots

    @property
    def judged_pairs(self) -> tuple[Pair, ...]:
        """The pairs, adjusted for the drift of the machine."""
        slots = self.slots
        if slots is None:
            return self.pairs
        return tuple(pair.model_copy(update={"candidate": pair.candidate * math.exp(-shift)})
                     for pair, shift in zip(self.pairs, self._shifts(slots), strict=True))

    @property
    def units(self) -> tuple[Pair, ...]:
        """The values that the tests count: the pairs, or the means of those of each node; () if some ran on none."""
        if not self.asked.counts_nodes:
            return self.judged_pairs
        known = all(pair.repeat in self.asked.nodes for pair in self.pairs)
        return node_means(self.judged_pairs, self.asked.nodes) if known else ()

    @property
    def counted(self) -> str:
        """`10 pairs`, `6 nodes`."""
        return f"{len(self.units)} nodes" if self.asked.counts_nodes else f"{self.n} pairs"

    @property
    def is_torn(self) -> bool:
        """The interval leaves out 1 on the other side than the ratio: a few pairs far from the rest move the mean more
        than the location that a confidence sequence is about. No other interval leaves out the ratio."""
        ends = self.interval
        return ends is not None and self.ratio is not None and (
            ends.high < 1 <= self.ratio or self.ratio <= 1 < ends.low)

    def is_parted(self, needed: int) -> bool:
        """Return whether `needed` pairs have run, of which some are left out."""
        return bool(self.left_out) and not self.asked.counts_nodes and self.n + len(self.left_out) >= needed

    @property
    def by_node(self) -> ByNode | None:
        """The ratio by node; None: not in a pool, or it has none."""
        asked = self.asked
        if self.ratio is None or not asked.scale.clocked or any(pair.repeat not in asked.nodes for pair in self.pairs):
            return None
        return node_figures(self.judged_pairs, asked.nodes, asked.unit)

    @property
    def by_load(self) -> ByLoad | None:
        """The ratio in blocks that ran alone; None: there are none, or it has no ratio to compare with."""
        scale = self.asked.scale
        sides = [cell_trials("", trials, scale) for trials in self.asked.alone]
        if self.ratio is None or not scale.clocked or any(side.wrong for side in sides):
            return None
        return load_figures(self.pairs, pairs_of(*sides))

    def _shifts(self, slots: Slots) -> tuple[float, ...]:
        """Return the part of each log ratio that the machine explains; of a rate it is the opposite of a time's."""
        sign = self.asked.scale.drift_sign
        return tuple(sign * slots.shift(pair.repeat) for pair in self.pairs)

    @property
    def adjusted(self) -> Adjusted | None:
        """The adjustment of the ratio for drift; None if there is none."""
        slots = self.slots
        if slots is None or self.ratio is None or not self.pairs:
            return None
        apart = [slots.apart.get(pair.repeat, 0) for pair in self.pairs]
        return Adjusted(per_place=math.expm1(slots.per_place), places=sum(apart) / len(apart),
                        unadjusted=stats.paired_ratio(*sides_of(self.pairs))[0], shifts=self._shifts(slots))

    @property
    def failures(self) -> Failures | None:
        """The trials of each cell whose end tells that they did not reach their target; None without any."""
        ours, theirs = ([meaning(item.status) for item in side.results.values()] for side in (self.ours, self.theirs))
        failed = [sum(end.counts and not end.reached for end in ends) for ends in (ours, theirs)]
        return Failures(candidate=failed[0], candidate_trials=len(ours), baseline=failed[1],
                        baseline_trials=len(theirs)) if any(failed) else None

    @property
    def levels(self) -> Levels | None:
        """Means and, from 20 pairs on, P90 of both cells; None without a ratio of pairs."""
        if self.ratio is None or not self.pairs:
            return None
        above, below = sides_of(self.judged_pairs)
        p90 = [float(np.quantile(side, 0.9)) if self.n >= FEWEST_FOR_P90 else None for side in sides_of(self.pairs)]
        return Levels(mean_ratio=plain_sum(above) / plain_sum(below), candidate_p90=p90[0], baseline_p90=p90[1])

    @property
    def smallest(self) -> int:
        """Trials of the cell that has fewer."""
        return min(self.ours.n, self.theirs.n)

    @property
    def agreeing(self) -> int:
        """Pairs on the side of the ratio."""
        return self.less if self.ratio is not None and self.ratio < 1 else self.more

    def corrected(self, level: float) -> stats.Interval | None:
        """Return the interval that a gate may test, of a look that of the look: of the crossings if the evaluation
        grids differ, of all times within their bounds if some were read late. None: there is none."""
        unlike = self.grid if self.grid is not None and self.grid.unlike else None
        wider = [item.interval(level) for item in (unlike, self.late) if item is not None]
        if self.interval is not None and wider:
            known = [found for found in wider if found is not None]
            return None if len(known) < len(wider) else stats.Interval(
                min(found.low for found in known), max(found.high for found in known), level)
        if self.interval is None or self.asked.stage is not None:
            return self.interval
        if self.asked.paired:
            return stats.paired_ratio(*sides_of(self.units), level)[1]
        return stats.welch_ratio(*_values(self.ours, self.theirs), level)[1]

    def is_fine(self, level: float) -> bool:
        """Return True if the evaluation grid is fine enough, and reads timely enough: two cells are the same only if
        their crossings are."""
        edge = 1 + self.asked.margin
        intervals = [item.interval(level) for item in (self.grid, self.late) if item is not None]
        return all(found is not None and 1 / edge <= found.low and found.high <= edge for found in intervals)

    def is_apart(self, level: float) -> bool:
        """Return False if evaluation grids that differ, or late reads, could produce the ratio alone."""
        return self.is_timely(level) and (self.grid is None or not self.grid.unlike or _leaves_out_1(self.grid, level))

    def is_timely(self, level: float) -> bool:
        """Return False if late reads could produce the ratio alone."""
        return self.late is None or _leaves_out_1(self.late, level)


def _leaves_out_1(known: Grid | Late, level: float) -> bool:
    found = known.interval(level)
    return found is not None and not found.low <= 1 <= found.high


def examine(
    candidate: ComparedCell, baseline: ComparedCell, candidate_results: Sequence[Observed],
    baseline_results: Sequence[Observed], asked: ComparisonRequest,
) -> Evidence:
    """Compute all figures of one candidate and one baseline; the order of the results does not matter."""
    ours = cell_trials("the candidate", candidate_results, asked.scale)
    theirs = cell_trials("the baseline", baseline_results, asked.scale)
    repeated = (*repeated_in(candidate, ours.results.values()), *repeated_in(baseline, theirs.results.values()))
    base = Evidence(candidate, baseline, asked, ours, theirs, (), 0, repeated=repeated)
    if ours.wrong or theirs.wrong:
        return replace(base, refusal=ours.wrong or theirs.wrong)
    if not asked.paired:
        return _unpaired(replace(base, n=min(ours.n, theirs.n)))
    if unlike := mismatch(ours, theirs):
        return replace(base, refusal=f"{unlike.text}, so they are not a pair",
                       welch=None if unlike.hash_name == "data" or ours.without or theirs.without
                       else _unpaired_figure(stats.welch_ratio, ours, theirs))
    found = _paired(_in_blocks(base))
    if found.refusal or found.ratio is None or not asked.scale.clocked:
        return found
    carried = asked.carry.estimate(found.judged_pairs, asked.scale.drift_sign)
    cautions = (*found.asked.cautions, carried.words) if carried is not None and carried.clear else found.asked.cautions
    return replace(found, carry_over=carried, asked=replace(found.asked, cautions=cautions))


def _in_blocks(base: Evidence) -> Evidence:
    """Return it with its pairs; of a metric with a clock without those whose two trials did not run in one block.

    A failed trial stays, and forbids the ratio until it has run again.
    """
    ours, theirs = base.ours, base.theirs
    apart = base.asked.apart if base.asked.scale.clocked else frozenset()
    left_out = tuple(sorted(repeat for repeat in apart & ours.results.keys() & theirs.results.keys()
                            if all(meaning(side.results[repeat].status).counts for side in (ours, theirs))))
    if left_out:
        ours, theirs = (side.only(side.results.keys() - set(left_out)) for side in (ours, theirs))
        text = (f"{len(left_out)} of {base.ours.n} pairs left out (repeat {', '.join(map(str, left_out[:8]))}"
                f"{', ...' if len(left_out) > 8 else ''}): their two trials did not run in one block, but with other "
                "trials, a pause of the run or a move to another place between them, so a change of the machine would "
                "look like a difference")
        base = replace(base, asked=replace(base.asked, cautions=(*base.asked.cautions, text)))
    pairs = pairs_of(ours, theirs)
    return replace(base, ours=ours, theirs=theirs, pairs=pairs, n=len(pairs), left_out=left_out,
                   floor=stats.sign_flip_floor(max(1, len(pairs))))


def _paired(base: Evidence) -> Evidence:
    asked = base.asked
    if lost := _lost(base):
        return lost
    have = len(base.ours.results.keys() & base.theirs.results.keys()) + len(base.left_out)
    early = "" if asked.planned is None or have >= asked.planned else (
        f"{have} of {asked.planned} planned pairs have run; no verdict before all have")
    base = _of_trainings(base)
    if base.refusal:
        return base
    if base.ours.without or base.theirs.without:
        if base.asked.counts_nodes:
            return replace(base, refusal=early or "not every trial reached the target; a verdict on nodes of this "
                                                  "class (unit: node) needs the ratio of every pair")
        found = _with_missed(base)
        return replace(found, refusal=early) if early and not found.refusal else found
    if base.n < 2:
        where = "in one block" if base.left_out else "with one seed"
        text = f"{base.n} pair{'s' if base.n != 1 else ''} {where}; an interval needs two, significance six"
        advice = Advice(kind="parted_pairs" if base.is_parted(6) else "more_pairs", n=6)
        return replace(base, refusal=early or text, advice=_MISSING if early else advice)
    if base.asked.counts_nodes and len(base.units) < LEAST_NODES:
        return replace(base, advice=_MISSING if early else None, refusal=early or (
            f"its pairs ran on {base.counted if base.units else 'no node of a pool'}; a verdict on nodes of this class "
            f"(unit: node) needs at least {LEAST_NODES}"))
    found = _ratios(base)
    return replace(found, refusal=early or _outside(base), advice=_MISSING if early else None)


def _of_trainings(base: Evidence) -> Evidence:
    """Keep one trial of each training, or refuse, if the training alone decides the figure or that there is none."""
    scale = base.asked.scale
    missed = scale.to_target and bool(base.ours.without or base.theirs.without)
    if not base.repeated or not (scale.by_training or missed):
        return base
    ours, theirs = one_of_each(base.ours, base.theirs, base.asked.paired)
    if min(ours.n, theirs.n) < 2 or base.asked.stage is not None:
        subject = scale.noun if scale.by_training else "trials that missed the target"
        found = ", ".join(item.short for item in base.repeated)
        return replace(base, advice=Advice(kind="own_seeds", n=6), refusal=(
            f"{found}; says nothing about other seeds, so there is no verdict on {subject}"))
    pairs = pairs_of(ours, theirs) if base.asked.paired else ()
    n = len(pairs) if base.asked.paired else min(ours.n, theirs.n)
    return replace(base, ours=ours, theirs=theirs, pairs=pairs, n=n, floor=stats.sign_flip_floor(max(1, n)))


def _lost(base: Evidence) -> Evidence | None:
    """Refuse if a trial's end tells nothing about the cell or, for a metric without a target, gives no figure."""
    sides = [item for item in (base.ours, base.theirs) if item.without]
    ends = [meaning(status) for item in sides for status in item.without]
    # A trial is lost that broke, or that reached the target and lacks the metric.
    lost = [end for end in ends if not base.asked.scale.to_target or not end.counts or end.reached]
    if not lost:
        return None
    # A contest runs every declared run once.
    again = JUDGES.get(base.design) != "mean" and all(end.reruns for end in lost)
    words = " and ".join(item.without_words() for item in sides)
    why = "a ratio over the other trials would hide them" if all(end.counts for end in ends) else (
        f"a failed trial says nothing about the {base.asked.scale.noun}, so there is no ratio")
    return replace(base, refusal=f"{words}; {why}", advice=Advice(kind="lost_trials" if again else "not_run_again"))


def _outside(base: Evidence) -> str:
    """Return the reasons against a verdict that are not in the figures."""
    if base.asked.scale.fixed_budget and base.design not in FULL_BUDGET:
        return "these trials stop at their target, so their final quality is the target's; compare it under design " \
               "fixed_budget"
    return "; ".join(base.asked.refusals)


def _ratios(base: Evidence) -> Evidence:
    """Compute the figures of cells of which every trial has the metric."""
    above, below = sides_of(base.units)
    logs = stats.log_ratios(above, below).tolist()
    steady = stats.deviation(np.asarray(logs)) < NO_SPREAD
    nodes = base.asked.counts_nodes
    interval: stats.Interval | None
    ratio, interval = stats.paired_ratio(above, below)
    exact = len(logs) <= stats.EXACT_PAIRS
    p = p_without_spread(logs) if steady else stats.sign_flip(logs) if exact else stats.paired_p(above, below)
    test = None if steady else stats.or_none(lambda: stats.equivalent_pairs(logs, base.asked.margin))
    if base.asked.stage is not None and (not steady or base.asked.stage.anytime):
        interval, p, at_look = stage_figures(above, below, base.asked.margin, base.asked.stage)
        test = None if steady else at_look
    return replace(
        base, ratio=ratio, interval=None if steady else interval, p=p, equivalence=test,
        less=sum(a < b for a, b in zip(above, below, strict=True)),
        more=sum(a > b for a, b in zip(above, below, strict=True)), floor=stats.sign_flip_floor(len(logs)),
        # Without the nodes these are of trials and pairs, whose intervals say nothing about other nodes.
        welch=None if nodes else _unpaired_figure(stats.welch_ratio, base.ours, base.theirs),
        probability_less=None if nodes else _unpaired_figure(stats.probability_less, base.ours, base.theirs),
        split=None if base.repeated or nodes else split_of(base.ours, base.theirs, base.judged_pairs, base.asked.scale),
        grid=grid_of(base.ours, base.theirs, base.asked.scale, True, base.asked.nodes if nodes else {}),
        late=late_of(base.ours, base.theirs, base.asked.scale, True),
    )


def _values(ours: CellTrials, theirs: CellTrials) -> tuple[list[float], list[float]]:
    return list(ours.values.values()), list(theirs.values.values())


def p_without_spread(logs: Sequence[float]) -> float:
    """Return the exact sign-flip p of any number of equal log ratios: only one of all flips and its mirror reach it."""
    return stats.sign_flip_floor(len(logs)) if abs(logs[0]) > NO_SPREAD else 1.0


def _with_missed(base: Evidence) -> Evidence:
    scale = base.asked.scale
    grid = grid_of(base.ours, base.theirs, scale, paired=True)
    found = missed(base.ours, base.theirs, scale, base.asked.horizon, like_grids=grid is None or not grid.unlike)
    if base.asked.stage is not None and base.asked.stage.anytime and found.p is not None:
        p, less = missed_stakes(base.ours, base.theirs, scale)
        found = replace(found, p=p, less=less)
    return replace(base, missed=found, refusal=found.refusal or _outside(base), p=found.p, less=found.first,
                   more=found.second, floor=stats.sign_flip_floor(max(1, found.n)), n=found.n,
                   grid=grid)


def _unpaired(base: Evidence) -> Evidence:
    """Compute the figures of trials that do not share their seeds: Welch on logs."""
    if lost := _lost(base):
        return lost
    base = _of_trainings(base)
    if base.refusal:
        return base
    if base.ours.without or base.theirs.without:
        found_missed = missed(base.ours, base.theirs, base.asked.scale, base.asked.horizon, paired=False)
        return replace(base, missed=found_missed, refusal=found_missed.refusal or _outside(base))
    above, below = _values(base.ours, base.theirs)
    if min(len(above), len(below)) < 2:
        return replace(base, refusal=f"{len(above)} and {len(below)} trials; an interval needs two of each")
    found = stats.or_none(lambda: stats.welch_ratio(above, below))
    if found is None or max(float(np.std(np.log(side))) for side in (above, below)) < NO_SPREAD:
        return replace(base, refusal="all trials of each have the same figure: without a spread there is no interval")
    return replace(
        base, ratio=found[0], interval=found[1], p=stats.welch_p(above, below),
        floor=0.0 if min(len(above), len(below)) >= LEAST_REPEATS else 1.0, refusal=_outside(base),
        equivalence=stats.or_none(lambda: stats.tost_welch(above, below, base.asked.margin)),
        welch=Estimate(value=found[0], interval=bounds(found[1])),
        probability_less=_unpaired_figure(stats.probability_less, base.ours, base.theirs),
        grid=grid_of(base.ours, base.theirs, base.asked.scale, paired=False),
        late=late_of(base.ours, base.theirs, base.asked.scale, paired=False),
    )


def _unpaired_figure(
    method: Callable[[Sequence[float], Sequence[float]], tuple[float, stats.Interval]], ours: CellTrials,
    theirs: CellTrials,
) -> Estimate | None:
    found = stats.or_none(lambda: method(*_values(ours, theirs)))
    return Estimate(value=found[0], interval=bounds(found[1])) if found else None


def split_of(ours: CellTrials, theirs: CellTrials, pairs: Sequence[Pair], scale: MetricSpec) -> TimeSplit | None:
    """Return the two factors of a ratio of times over complete pairs; None for other metrics, or if samples are
    unknown.

    A run's time is its samples over its samples a second, so in geometric means the identity is exact.
    """
    if not (scale.timed and scale.to_target):
        return None
    above, below = ([side.results[pair.repeat].samples_to_target for pair in pairs] for side in (ours, theirs))
    if any(count is None or count <= 0 for count in (*above, *below)):
        return None
    samples = [[float(count or 0) for count in side] for side in (above, below)]
    rates = [[count / seconds for count, seconds in zip(counts, times, strict=True)]
             for counts, times in zip(samples, sides_of(pairs), strict=True)]
    return TimeSplit(samples=_estimate(*samples), throughput=_estimate(*rates))


def _estimate(candidate: Sequence[float], baseline: Sequence[float]) -> Estimate:
    ratio, interval = stats.paired_ratio(candidate, baseline)
    steady = math.isclose(interval.low, interval.high, rel_tol=1e-12)
    return Estimate(value=ratio, interval=None if steady else bounds(interval), steady=steady)
