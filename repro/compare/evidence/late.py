"""Times of programs whose statements were read late: each is known to bounds, and so is a ratio of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from repro import stats
from repro.compare.evidence.pairing import CellTrials, Observed
from repro.suite.metrics import MetricSpec

Span = tuple[float, float]
"""Bounds of the log of a time, or of the log of a ratio of two."""
ROUNDING = 1e-12
"""Relative width of the bounds of a time that is known."""


@dataclass(frozen=True, slots=True)
class Late:
    """Ranges of times, and of their ratios, that agree with late reads."""

    trials: int
    """Trials whose time is known to bounds only."""
    share: float
    """Largest width of these bounds, relative to the time."""
    sides: tuple[tuple[Span, ...], tuple[Span, ...]]
    """Times in seconds of the candidate and of the baseline."""
    pairs: tuple[Span, ...]
    """Range of the log ratio of each pair; () if not paired."""

    def interval(self, level: float) -> stats.Interval | None:
        """Return the interval of the ratio, valid for every time within its bounds; None: no bound."""
        if self.pairs:
            return stats.or_none(lambda: stats.range_interval(self.pairs, level)[1])
        return stats.or_none(lambda: stats.bracket_welch(*self.sides, level))


def late_of(ours: CellTrials, theirs: CellTrials, spec: MetricSpec, paired: bool) -> Late | None:
    """Return what late reads leave open; None for a metric without our clock, and if every time is known."""
    if spec.path not in ("tta_wall", "tta_cold"):
        return None
    known = [item for side in (ours, theirs) for repeat, item in side.results.items()
             if repeat in side.values and item.tta_wall_bounds is not None]
    if not known:
        return None
    sides = [{repeat: _span(side.results[repeat], value) for repeat, value in side.values.items()}
             for side in (ours, theirs)]
    shared = sorted(sides[0].keys() & sides[1].keys()) if paired else []
    spans = [*sides[0].values(), *sides[1].values()]
    return Late(
        trials=len(known), share=max((high - low) / high for low, high in spans),
        sides=(tuple(sides[0].values()), tuple(sides[1].values())),
        pairs=tuple((_log(sides[0][repeat][0]) - math.log(sides[1][repeat][1]),
                     math.log(sides[0][repeat][1]) - _log(sides[1][repeat][0])) for repeat in shared))


def _span(result: Observed, value: float) -> Span:
    """Return the bounds of a time by the wall clock, or from a cold start, which are as far from it."""
    wall, bounds = result.at("tta_wall"), result.tta_wall_bounds
    if bounds is None or wall is None:
        return value * (1 - ROUNDING), value
    return max(0.0, value + bounds[0] - wall), value + bounds[1] - wall


def _log(low: float) -> float:
    return math.log(low) if low > 0 else -math.inf
