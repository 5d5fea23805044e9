"""A search as parallel coordinates, drawn with elements that need no script: one line a setting, one axis a field.

The charting library draws such figures with WebGL and with code made at run time, which the page's security policy
forbids, and which would not print.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from repro.record.tuning import TriedSetting, TunedContender
from repro.suite.field_problem import as_text
from repro.suite.metrics import METRICS
from repro.suite.tune import Axis
from repro.tables.text import significant
from repro.tables.tuning import end_of, figure_text, is_lower_better, setting_text

TOP, BOTTOM, LOST = 34.0, 190.0, 204.0
"""Pixels from the top: best and worst end of an axis, and the place of settings without a figure."""
HEIGHT = 216
SHADES = 5
"""Classes s0 (best) to s4 of report.css."""
WIDE = 10.0
"""Largest over least figure from which on its axis is logarithmic."""


@dataclass(frozen=True, slots=True)
class DrawnAxis:
    """One axis: a field, or the figure."""

    name: str
    at: float
    """Per cent of the width."""
    left: bool
    """Its ticks stand left of it: the first axis."""
    ticks: tuple[tuple[float, str], ...]
    """(pixels from the top, text)."""


@dataclass(frozen=True, slots=True)
class DrawnSetting:
    """One line."""

    segments: tuple[tuple[float, float, float, float], ...]
    """(x1 per cent, y1 pixels, x2, y2)."""
    style: str
    """Its classes: a shade by its figure, or missed, abandoned, failed; best for the chosen one."""
    words: str


@dataclass(frozen=True, slots=True)
class Parallel:
    """The whole search of one contender."""

    axes: tuple[DrawnAxis, ...]
    settings: tuple[DrawnSetting, ...]
    """The best last, on top of the others."""
    least_width: int
    """Pixels below which the drawing scrolls."""
    height: int = HEIGHT


def parallel(contender: TunedContender, metric: str) -> Parallel:
    """Draw the settings of a contender."""
    names = sorted(contender.space.space)
    places = [_place(index, len(names) + 1) for index in range(len(names) + 1)]
    lower = is_lower_better(contender, metric)
    scale = _Scale([item.figure for item in contender.settings if item.figure is not None], lower)
    axes = [DrawnAxis(name, at, at == places[0], _ticks(contender.space.space[name]))
            for name, at in zip(names, places, strict=False)]
    axes.append(DrawnAxis(METRICS[metric].noun, places[-1], False, scale.ticks))
    drawn = []
    for item in sorted(contender.settings, key=lambda item: -item.rank):
        heights = [_height(contender.space.space[name], item.values[name]) for name in names]
        points = list(zip(places, [*heights, scale.height(item.figure)], strict=True))
        drawn.append(DrawnSetting(
            tuple((*one, *other) for one, other in pairwise(points)),
            f"{_style(item, scale)}{' best' if item is contender.chosen else ''}", _words(item, metric)))
    return Parallel(tuple(axes), tuple(drawn), 160 * (len(names) + 1))


class _Scale:
    """The axis of the figure: the best at the top."""

    def __init__(self, values: Sequence[float], lower: bool) -> None:
        self._log = bool(values) and min(values) > 0 and max(values) / min(values) >= WIDE
        ends = [self._of(value) for value in values] or [0.0]
        low, high = min(ends), max(ends)
        self._best, self._worst = (low, high) if lower else (high, low)
        shown = sorted(set(values), reverse=not lower)
        marks = [(self.height(value), f"{value:,.4g}") for value in (*shown[:1], *shown[1:][-1:])]
        self.ticks = (*marks, (LOST, "missed"))

    def _of(self, value: float) -> float:
        return math.log(value) if self._log else value

    def share(self, value: float) -> float:
        """Return 0 for the best figure and 1 for the worst."""
        width = self._worst - self._best
        return (self._of(value) - self._best) / width if width else 0.0

    def height(self, value: float | None) -> float:
        return LOST if value is None else round(TOP + self.share(value) * (BOTTOM - 14 - TOP), 1)


def _style(item: TriedSetting, scale: _Scale) -> str:
    if item.figure is None:
        return end_of(item).replace(" ", "-")
    return f"s{min(SHADES - 1, int(scale.share(item.figure) * SHADES))}"


def _words(item: TriedSetting, metric: str) -> str:
    quality = "" if item.quality is None else f", best quality {significant(item.quality, 4)}"
    return (f"setting {item.number}, rank {item.rank}: {setting_text(item.values)}: {METRICS[metric].noun} "
            f"{figure_text(item, metric)}{quality}")


def _place(index: int, count: int) -> float:
    return round(13.0 + 73.0 * index / max(1, count - 1), 3)


def _height(axis: Axis, value: Any) -> float:
    """Return where a value lies on its axis, the least at the bottom."""
    if axis.choices is not None:
        index = next((place for place, choice in enumerate(axis.choices) if choice == value), 0)
        part = index / (len(axis.choices) - 1) if len(axis.choices) > 1 else 0.5
    else:
        low, high = axis.ends
        part = math.log(value / low) / math.log(high / low) if axis.log else (value - low) / (high - low)
    return round(BOTTOM - min(1.0, max(0.0, part)) * (BOTTOM - TOP), 1)


def _ticks(axis: Axis) -> tuple[tuple[float, str], ...]:
    if axis.choices is not None:
        shown = axis.choices if len(axis.choices) <= 8 else (axis.choices[0], axis.choices[-1])
        return tuple((_height(axis, choice), as_text(choice)) for choice in shown)
    return tuple((_height(axis, end), f"{end:g}") for end in axis.ends)
