"""Evaluation grids of two cells: where each crossing lies, in the metric's own unit, and what the grids alone can do.

A target is seen at evaluations only, so every metric of it is known to a bracket: from the last evaluation that missed
to the first that hit. Two cells may look equal because the grid is coarse, or different because their grids differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from repro import stats
from repro.compare.evidence.pairing import CellTrials, Observed
from repro.compare.evidence.pooled import MeanTrial
from repro.core.numbers import known_median
from repro.record.result.result_warnings import init_excess
from repro.record.result.results import Bracket, Point
from repro.suite.metrics import MetricSpec

Span = tuple[float, float]
"""(last miss, first hit) of one trial in the unit of the metric; a last miss of 0: nothing is known below the hit."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The brackets in which two cells crossed their target, between two evaluations each."""

    unlike: str
    """Difference between the two grids; "" if they are equal."""
    share: float | None
    """Largest excess of first hits over crossings, relative; inf if a first evaluation hit; None: unknown."""
    first: tuple[int, int]
    """Trials of the candidate and of the baseline that hit at their first evaluation."""
    pairs: tuple[Span, ...] = ()
    """Range of the log ratio of crossings of each pair (or node); () if not paired, or if a bracket is missing."""
    sides: tuple[tuple[Span, ...], tuple[Span, ...]] = ((), ())
    """Spans of the candidate and of the baseline, for trials that are not paired."""

    def interval(self, level: float) -> stats.Interval | None:
        """Return the interval of the ratio of crossings, valid for every position in their brackets; None: no bound."""
        if self.pairs:
            return stats.or_none(lambda: stats.range_interval(self.pairs, level)[1])
        return stats.or_none(lambda: stats.bracket_welch(*self.sides, level))


def grid_of(
    ours: CellTrials, theirs: CellTrials, spec: MetricSpec, paired: bool, nodes: Mapping[int, str] | None = None,
) -> Grid | None:
    """Return the grids of two cells whose trials all have the metric; None for a metric that no evaluation limits.

    Args:
        nodes: repeat -> node, if nodes are counted instead of pairs.
    """
    if not spec.to_target:
        return None
    shared = sorted(ours.values.keys() & theirs.values.keys()) if paired else []
    spans = [{repeat: span_of(found.results[repeat], spec, value) for repeat, value in found.values.items()}
             for found in (ours, theirs)]
    ranges = [_pair_range(ours.results[repeat], theirs.results[repeat], spans[0][repeat], spans[1][repeat])
              for repeat in shared]
    known = tuple(found for found in ranges if found is not None)
    complete_pairs = len(known) == len(ranges)
    if nodes and complete_pairs:
        by_node: dict[str, list[Span]] = {}
        for repeat, found in zip(shared, known, strict=True):
            by_node.setdefault(nodes[repeat], []).append(found)
        known = tuple((fmean(low for low, _ in each), fmean(high for _, high in each)) for each in by_node.values())
    candidate, baseline = (tuple(span for span in side.values() if span is not None) for side in spans)
    complete = len(candidate) + len(baseline) == len(ours.values) + len(theirs.values)
    return Grid(
        unlike=unlike_grids(list(ours.results.values()), list(theirs.results.values())),
        share=stats.or_none(lambda: stats.bracket_bias((*candidate, *baseline))) if complete else None,
        first=(_first_hits(ours), _first_hits(theirs)),
        pairs=known if paired and complete_pairs else (),
        sides=(candidate, baseline) if complete and not paired else ((), ()),
    )


def coarseness(sides: Sequence[CellTrials], spec: MetricSpec) -> float:
    """Return how far evaluations are apart at the target, relative, over all trials with the metric; infinite if that
    is unknown or a first evaluation hit; 0 for a metric that no evaluation limits."""
    if not spec.to_target:
        return 0.0
    spans = [span_of(side.results[repeat], spec, value) for side in sides for repeat, value in side.values.items()]
    known = [span for span in spans if span is not None]
    share = stats.or_none(lambda: stats.bracket_bias(known)) if len(known) == len(spans) else None
    return math.inf if share is None else share


def span_of(result: Observed, spec: MetricSpec, value: float) -> Span | None:
    """Return between which values of the metric a trial crossed its target; None without a bracket.

    If several hits in a row establish the target, the metric, `value`, is that of the last of them: both ends are moved
    by the time from the first hit to it, which is the same on equal grids.
    """
    if isinstance(result, MeanTrial):
        spans = [span_of(part, spec, part.at(spec.path)) for part in result.parts]
        return _mean_span([span for span in spans if span is not None]) if None not in spans else None
    found = result.bracket
    if found is None:
        return None
    if spec.watched == "samples":
        return _span(float(found.miss_samples), float(found.hit_samples))
    high = value - (_confirming(result, found, spec) if spec.watched else 0.0)
    return _span(max(0.0, high - _width(result, found, spec, value)), high)


def _mean_span(spans: Sequence[Span]) -> Span:
    """Return the geometric mean of both ends."""
    low, high = (math.exp(fmean(map(math.log, ends))) if all(ends) else 0.0 for ends in zip(*spans, strict=True))
    return low, high


def _span(low: float, high: float) -> Span | None:
    """Return the span if it is one; a low end that is only rounding above 0 is 0."""
    if not (math.isfinite(low) and math.isfinite(high) and high > low):
        return None
    return (0.0 if low < 1e-9 * high else low), high


def _width(result: Observed, found: Bracket, spec: MetricSpec, value: float) -> float:
    """Return the distance from the last miss to the first hit by the clock of the metric."""
    if spec.watched in ("wall", "cold"):
        return found.hit_wall_seconds - found.miss_wall_seconds
    ends = _train_seconds(result, found.miss_samples), _train_seconds(result, found.hit_samples)
    if spec.watched == "train" and ends[0] is not None and ends[1] is not None:
        return ends[1] - ends[0]
    return value * (1 - found.miss_samples / found.hit_samples) if found.hit_samples else value


def _confirming(result: Observed, found: Bracket, spec: MetricSpec) -> float:
    """Return the time from the first hit to the evaluation that established the target."""
    training = spec.watched == "train"
    first = _train_seconds(result, found.hit_samples) if training else found.hit_wall_seconds
    last = result.at("tta_train" if training else "tta_wall")
    return 0.0 if first is None or last is None else max(0.0, last - init_excess(result.init_seconds) - first)


def _train_seconds(result: Observed, samples: int) -> float | None:
    if not samples:
        return 0.0
    return next((point.train_seconds for point in result.curve if point.samples == samples), None)


def _pair_range(one: Observed, other: Observed, ours: Span | None, theirs: Span | None) -> Span | None:
    """Return the range of the log ratio of the crossings of two trials of one seed.

    Two trials with the same final weights trained the same model, step by step, so they crossed at the same sample:
    only their speed between the two evaluations is unknown, and the ratio is between those at both ends.
    """
    if ours is None or theirs is None:
        return None
    if _same_training(one, other):
        ends = [math.log(ours[1] / theirs[1])]
        if ours[0] and theirs[0]:
            ends.append(math.log(ours[0] / theirs[0]))
        if bool(ours[0]) == bool(theirs[0]):
            return min(ends), max(ends)
    low = math.log(ours[0] / theirs[1]) if ours[0] else -math.inf
    high = math.log(ours[1] / theirs[0]) if theirs[0] else math.inf
    return low, high


def _same_training(one: Observed, other: Observed) -> bool:
    weights = one.hashes.get("final_weights")
    return weights is not None and weights == other.hashes.get("final_weights") and (
        one.bracket is not None and other.bracket is not None
        and (one.bracket.miss_samples, one.bracket.hit_samples, one.samples)
        == (other.bracket.miss_samples, other.bracket.hit_samples, other.samples))


def _first_hits(found: CellTrials) -> int:
    return sum(item.bracket is not None and item.bracket.miss_samples == 0 for item in found.results.values())


def unlike_grids(candidate: Sequence[Observed], baseline: Sequence[Observed]) -> str:
    """Return what two different evaluation grids do to times to a target; "" if the grids are equal.

    A crossing is seen at the next evaluation, so a time is too long by at most one distance between evaluations.
    """
    ours, theirs = _positions(candidate), _positions(baseline)
    if not ours or not theirs:
        return _unlike_widths(candidate, baseline)
    shared = min(len(ours), len(theirs))
    if ours[:shared] == theirs[:shared]:
        if not _only_numbered(candidate, baseline):
            return ""
        text = "the evaluation grids may differ, because no step of an evaluation is stated"
        return f"{text}; {_late(candidate, baseline)}"
    if ours[0] != theirs[0]:
        text = f"the evaluation grids differ: every {ours[0]} samples against every {theirs[0]}"
    else:
        number = next(place for place in range(shared) if ours[place] != theirs[place])
        text = (f"the evaluation grids differ: evaluation {number + 1} after {ours[number]} samples against "
                f"{theirs[number]}")
    return f"{text}; {_late(candidate, baseline)}"


def _only_numbered(candidate: Sequence[Observed], baseline: Sequence[Observed]) -> bool:
    """Return whether evaluations are only numbered, and equal epochs do not say that their grids are equal."""
    epochs = [[point.epochs for point in _longest(results)] for results in (candidate, baseline)]
    return all(item.only_numbered for item in (*candidate, *baseline) if item.curve) and not (
        all(map(any, epochs)) and all(one == other for one, other in zip(*epochs, strict=False)))


def _unlike_widths(candidate: Sequence[Observed], baseline: Sequence[Observed]) -> str:
    """Return the same of trials without a curve, by the distance between their last miss and their first hit."""
    ours, theirs = (known_median(
        item.bracket.hit_samples - item.bracket.miss_samples for item in results
        if item.bracket is not None and not item.curve and item.attempt) for results in (candidate, baseline))
    if ours is None or theirs is None or ours == theirs:
        return ""
    return (f"the evaluation grids differ: {ours:g} samples from the last miss to the first hit against {theirs:g}; "
            f"{_late(candidate, baseline)}")


def _positions(results: Iterable[Observed]) -> tuple[int, ...]:
    return tuple(point.samples for point in _longest(results))


def _longest(results: Iterable[Observed]) -> Sequence[Point]:
    return max((item.curve for item in results), key=len, default=())


def _late(candidate: Sequence[Observed], baseline: Sequence[Observed]) -> str:
    """Return how late a crossing is seen: the median over trials of the bracket's width relative to its end."""
    ours, theirs = (known_median(
        1 - item.bracket.miss_wall_seconds / item.bracket.hit_wall_seconds for item in results
        if item.bracket is not None and item.bracket.hit_wall_seconds > 0) for results in (candidate, baseline))
    if ours is None or theirs is None:
        return "a crossing is seen only at the next evaluation"
    return f"a crossing is seen late by up to {100 * ours:.1f} % of the time against up to {100 * theirs:.1f} %"
