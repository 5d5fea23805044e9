"""Doubts about how a run was made: a machine that drifts, blocks that were not kept.

Cells take turns in blocks of one seed, in an order drawn for each run, so a machine that slows down slows no cell more
than another on average. The test compares seconds per sample with the order of execution. Seeds are drawn
independently, so without drift every order of a cell's times is equally likely, and a rank test keeps its level.

Where a run drifts, the ratio of each pair is adjusted for the places of its two trials. The slope is that of the means
of blocks, which do not change if the two trials of a pair are swapped. So under the null hypothesis the adjusted log
ratio only changes its sign, and the sign-flip test stays exact.

In a pool each lane has its own order and its own level: places count within a lane, and only trials of one lane are
compared with each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, median

import numpy as np

from repro import stats
from repro.compare.evidence.blocks import Blocks, blocks_of
from repro.compare.evidence.carry_over import Carry
from repro.compare.qualifiers import Failures
from repro.core.errors import visible
from repro.core.numbers import spans
from repro.record.environment.placement import host_of
from repro.record.folder.execution import Execution
from repro.record.result.results import Result, figure
from repro.stats.interval import from_log
from repro.suite.metrics import DEFAULT, METRICS, MetricSpec
from repro.suite.model import Unit
from repro.suite.planning.plan import Plan

ALPHA = 0.05
LEAST = 5
"""Fewest trials that can show a trend (four have 4! orders: p is 2/24 at least)."""
SHOWN = 3
"""Places that a caution names, and nodes of one."""
FLAT = 1e-9
"""Range of log times below which all differences are rounding."""


@dataclass(frozen=True, slots=True)
class Caution:
    """A fact that a reader of a verdict must know."""

    cell_id: str | None
    """None: the whole run."""
    text: str


@dataclass(frozen=True, slots=True)
class Drift:
    """A trend of the machine over one run."""

    words: str
    per_place: float
    """Change of the log time from one place in the order of execution to the next (Theil-Sen, of the blocks' means)."""
    places: Mapping[str, Mapping[int, int]]
    """Cell -> repeat -> place on its lane."""


@dataclass(frozen=True, slots=True)
class Slots:
    """The places of pairs in the order of execution, on a machine that drifted."""

    per_place: float
    """Change of the log time from one place to the next."""
    apart: Mapping[int, float]
    """Repeat -> place of the candidate's trial less that of the baseline's."""

    def shift(self, repeat: int) -> float:
        """Return the share of the log ratio of times that the machine explains."""
        return self.per_place * self.apart.get(repeat, 0)


@dataclass(frozen=True, slots=True)
class _Placed:
    """One trial at its place in the order of execution of its lane."""

    lane: int
    place: int
    repeat: int
    log_seconds: float


def doubts(plan: Plan, results: Sequence[Result], execution: Execution | None = None) -> Doubts:
    """Return the doubts that the order of execution raises, with the drift of the run.

    A run, or a cell, whose times follow the order of execution gets a warning; for the trend of a run the ratios of its
    pairs are adjusted. Only repeats whose trials all ran in one block show that trend.

    Args:
        execution: the starts of all trials, from the ledger; without them the order of the plan counts, which the
            runner follows.
    """
    blocks = blocks_of(plan, results, execution)
    by_cell: dict[str, list[_Placed]] = {}
    for lane, ran in enumerate(blocks.lanes):
        for place, item in enumerate(ran):  # places count all trials of a lane, with a time or without
            if (seconds := seconds_per_sample(item)) is not None:
                by_cell.setdefault(item.cell_id, []).append(_Placed(lane, place, item.repeat, math.log(seconds)))
    whole = _run_drift(by_cell, blocks.broken)
    return Doubts(_cautions(plan, by_cell, whole, blocks), blocks, whole, plan.washes_out)


def _cautions(
    plan: Plan, by_cell: Mapping[str, Sequence[_Placed]], whole: Drift | None, blocks: Blocks
) -> list[Caution]:
    found = [Caution(None, text)] if (text := _places(blocks)) else []
    labels = {cell.cell_id: cell.label for cell in plan.cells}
    found += [Caution(cell, f"{labels[cell]}: {text}") for cell, text in blocks.suspects().items()]
    if whole is not None:
        return [*found, Caution(None, f"the machine drifted during the run: {whole.words}; ratios of times are "
                                      "adjusted for the places of their trials in the order of execution")]
    return [*found, *(Caution(cell, f"{labels[cell]}: {trend}; a ratio is an average over this change")
                      for cell, trend in _cell_trends(by_cell).items())]


def _places(blocks: Blocks) -> str:
    """Return that trials ran on several places, and which repeats on which; "" if all ran on one."""
    if len(blocks.places) < 2:
        return ""
    each = []
    for names, repeats in blocks.places.items():
        others = f" and {len(names) - SHOWN} more nodes" if len(names) > SHOWN else ""
        each.append(f"seeds {spans(sorted(repeats))} on {visible(' + '.join(names[:SHOWN]))}{others}")
    more = f" (and {len(each) - SHOWN} more places)" if len(each) > SHOWN else ""
    if blocks.pooled:
        return (f"blocks ran side by side on {len(each)} lanes, each pair on one: {'; '.join(each[:SHOWN])}{more}; "
                "ratios are those under the load of all of them")
    return (f"trials ran on {len(each)} places: {'; '.join(each[:SHOWN])}{more}; pairs divided between two are left "
            "out of figures with a clock, and a ratio is an average over the others")


@dataclass(frozen=True, slots=True)
class Lane:
    """One lane of a pool."""

    name: str
    repeats: frozenset[int]
    level: float | None
    """Median time of its trials, each over the geometric mean of its cell: 1.1 is 10 % slower than the lanes on
    average; None: no trial has a time."""


def lanes_of(plan: Plan, results: Sequence[Result], execution: Execution) -> list[Lane]:
    """Return the lanes of a run in a pool, by name; [] of any other run."""
    blocks = blocks_of(plan, results, execution)
    if not blocks.pooled:
        return []
    logs = {item.trial_id: math.log(seconds) for item in results if (seconds := seconds_per_sample(item)) is not None}
    of_cell: dict[str, list[float]] = {}
    for item in results:
        if item.trial_id in logs:
            of_cell.setdefault(item.cell_id, []).append(logs[item.trial_id])
    found = []
    for names, repeats in blocks.places.items():
        apart = [logs[item.trial_id] - fmean(of_cell[item.cell_id]) for item in results
                 if item.repeat in repeats and item.trial_id in logs]
        found.append(Lane(visible(" + ".join(names)), repeats, from_log(median(apart)) if apart else None))
    return sorted(found, key=lambda lane: lane.name)


@dataclass(frozen=True, slots=True)
class Doubts:
    """The cautions of a run, looked up for pairs of cells."""

    found: Sequence[Caution]
    blocks: Blocks
    drift: Drift | None = None
    washed: bool = False
    """The suite declares `wash_out`."""

    def refusals(self, candidate: str, baseline: str, spec: MetricSpec) -> tuple[str, ...]:
        """Return why these two cells get no verdict by this metric."""
        text = self.blocks.selected(candidate, baseline) if spec.clocked else ""
        return (text,) if text else ()

    def cautions(self, candidate: str, baseline: str) -> tuple[str, ...]:
        """Return the cautions about their verdict."""
        return tuple(dict.fromkeys(item.text for cell_id in (None, candidate, baseline) for item in self.found
                                   if item.cell_id == cell_id))

    def reruns(self, spec: MetricSpec, *pairs: tuple[str, str]) -> tuple[str, ...]:
        """Return the caution about failed starts of these pairs of cells that ran again."""
        starts = self.failed_starts(spec, *pairs)
        return () if starts is None else (starts.caution,)

    def apart(self, candidate: str, baseline: str) -> frozenset[int]:
        """Return the repeats whose two trials did not run in one block."""
        return self.blocks.apart(candidate, baseline)

    def carry(self, candidate: str, baseline: str) -> Carry:
        """Return what the start before each trial of two cells could do to their ratios."""
        return Carry.of(candidate, baseline, self.blocks.before, self.washed)

    def failed_starts(self, spec: MetricSpec, *pairs: tuple[str, str]) -> Failures | None:
        """Return the trials of pairs of cells of which a start failed, if some ran again; None: none did, or no clock
        is in the metric."""
        ours, theirs = ([pair[side] for pair in pairs] for side in (0, 1))
        failed, ran = self.blocks.crashed, self.blocks.numbers
        counts = [(sum(failed.get(cell, 0) for cell in side), sum(len(ran.get(cell, {})) for cell in side))
                  for side in (ours, theirs)]
        if not spec.clocked or not counts[0][0] + counts[1][0]:
            return None
        return Failures(candidate=counts[0][0], candidate_trials=counts[0][1],
                        baseline=counts[1][0], baseline_trials=counts[1][1], starts=True)

    def nodes(self, unit: Unit) -> dict[int, str]:
        """Return repeat -> the lane that it ran on, or, if the unit is a node, its computers; {}: not in a pool."""
        if not self.blocks.pooled:
            return {}
        return {repeat: visible(" + ".join(map(host_of, names) if unit == "node" else names))
                for names, repeats in self.blocks.places.items() for repeat in repeats}

    def slots(self, candidate: str, baseline: str) -> Slots | None:
        """Return how far apart the trials of each pair of two cells ran, if the machine drifted."""
        if self.drift is None:
            return None
        ours, theirs = self.drift.places.get(candidate, {}), self.drift.places.get(baseline, {})
        return Slots(self.drift.per_place, {repeat: ours[repeat] - theirs[repeat] for repeat in ours
                                            if repeat in theirs})


def seconds_per_sample(result: Result) -> float | None:
    """Return how slow the machine was in a trial: seconds per sample, else the time to the target."""
    rate = result.samples_per_second if result.train_samples_per_second is None else result.train_samples_per_second
    if rate is not None:
        return 1 / rate if math.isfinite(rate) and rate > 0 else None
    value = figure(result, METRICS[DEFAULT])
    return value if value is not None and math.isfinite(value) and value > 0 else None


def _run_drift(by_cell: Mapping[str, Sequence[_Placed]], broken: frozenset[int]) -> Drift | None:
    """Return the drift of all cells: each whole block's mean residual (log time less the cell's mean) against its
    order."""
    residuals: dict[int, list[float]] = {}
    places: dict[int, list[int]] = {}
    lanes: dict[int, int] = {}
    for trials in by_cell.values():
        kept = [ran for ran in trials if ran.repeat not in broken]
        level = fmean(ran.log_seconds for ran in kept) if kept else 0.0
        for ran in kept:
            residuals.setdefault(ran.repeat, []).append(ran.log_seconds - level)
            places.setdefault(ran.repeat, []).append(ran.place)
            lanes[ran.repeat] = ran.lane
    middles = {repeat: median(found) for repeat, found in places.items()}
    blocks = [[repeat for repeat in sorted(residuals, key=lambda repeat: middles[repeat]) if lanes[repeat] == lane]
              for lane in sorted(set(lanes.values()))]
    values = [[fmean(residuals[repeat]) for repeat in lane] for lane in blocks]
    if not _can_trend(values):
        return None
    rho, p = stats.lane_trend(values)
    if p > ALPHA:
        return None
    slopes = [(value - before) / (middles[repeat] - middles[earlier])
              for lane, found in zip(blocks, values, strict=True)
              for (earlier, before), (repeat, value) in combinations(zip(lane, found, strict=True), 2)
              if middles[repeat] > middles[earlier]]
    return Drift(
        _trend_words(rho, p, values), float(np.median(slopes)),
        {cell: {ran.repeat: ran.place for ran in trials} for cell, trials in by_cell.items()})


def _cell_trends(by_cell: Mapping[str, Sequence[_Placed]]) -> dict[str, str]:
    """Return the cells whose own times follow the order of execution, Holm over all cells.

    Tests start with the strongest trend and stop at the first that is none, as Holm's procedure steps down: thousands
    of cells cost thousands of rank correlations but only a few exact tests.
    """
    values = {cell: [[ran.log_seconds for ran in trials if ran.lane == lane]
                     for lane in sorted({ran.lane for ran in trials})] for cell, trials in by_cell.items()}
    strengths = {cell: _strength(found) for cell, found in values.items() if _can_trend(found)}
    trends: dict[str, str] = {}
    for done, cell in enumerate(sorted(strengths, key=lambda name: (-strengths[name], name))):
        rho, p = stats.lane_trend(values[cell])
        adjusted = p * (len(strengths) - done)
        if adjusted > ALPHA:
            break
        trends[cell] = _trend_words(rho, adjusted, values[cell])
    return trends


def _can_trend(lanes: Sequence[Sequence[float]]) -> bool:
    """Return whether values of lanes, each in order, can show a trend: enough of them stand beside others."""
    shared = [lane for lane in lanes if len(lane) > 1]
    return sum(map(len, shared)) >= LEAST and any(max(lane) - min(lane) > FLAT for lane in shared)


def _strength(lanes: Sequence[Sequence[float]]) -> float:
    """Spearman's rho within lanes over its standard deviation, ties left in order: a screen before the test."""
    top = bottom = 0.0
    for lane in lanes:
        count = len(lane)
        ranks = np.argsort(np.argsort(np.asarray(lane), kind="stable"))
        size = count * (count**2 - 1) / 6
        top += size - float(np.sum((ranks - np.arange(count)) ** 2))
        bottom += size**2 / (count - 1) if count > 1 else 0.0
    return abs(top) / math.sqrt(bottom)


def _trend_words(rho: float, p: float, lanes: Sequence[Sequence[float]]) -> str:
    """`later trials took longer, the second half 8.1 % longer a sample (rank correlation 0.89, p = 0.0011)`."""
    late = [value for lane in lanes if len(lane) > 1 for value in lane[-(len(lane) // 2):]]
    early = [value for lane in lanes for value in lane[:len(lane) // 2]]
    change = from_log(float(np.mean(late) - np.mean(early))) - 1
    word, later = ("longer" if value > 0 else "less time" for value in (change, rho))
    return (f"later trials took {later}, the second half {100 * abs(change):.1f} % {word} a sample "
            f"(rank correlation with the order {rho:.2f}, p = {p:.2g})")
