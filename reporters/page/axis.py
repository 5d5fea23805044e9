"""A common axis for small inline drawings: values to per cent of the width, with ticks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from repro.compare.figures import Bounds
from repro.tables.text import Number, ratios, trimmed

STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Tick:
    """One label under the axis."""

    at: float
    text: str
    anchor: str


@dataclass(frozen=True, slots=True)
class Axis:
    """Maps [low, high] to [left, right] per cent of the width, linearly or logarithmically."""

    low: float
    high: float
    log: bool
    left: float = 2.0
    right: float = 98.0
    values: tuple[float, ...] = ()
    letter: float = 2.2
    """Width of a letter, per cent of the drawing: labels that would overlap lose their text and keep their mark."""
    digits: int = 3
    """Significant digits of the labels."""

    def holds(self, value: float) -> bool:
        """Return True if `value` is within the axis."""
        return self.low <= value <= self.high

    def at(self, value: float) -> float:
        """Return the position of `value`, per cent; values outside the axis are drawn at its edge."""
        low, high, here = self.low, self.high, value
        if self.log:
            low, high, here = math.log(low), math.log(high), math.log(max(value, self.low))
        share = (here - low) / (high - low) if high > low else 0.5
        return round(self.left + (self.right - self.left) * min(1.0, max(0.0, share)), 3)

    @property
    def ticks(self) -> tuple[Tick, ...]:
        """The labels; the outer ones are anchored inwards, so that all stay inside the drawing."""
        taken: list[tuple[float, float]] = []
        # 1 first, the reference of ratios; then the outermost marks; then the others from the left.
        ends = self.values[:1] + self.values[-1:]
        found: dict[float, Tick] = {}
        for value in sorted(self.values, key=lambda value: (value != 1, value not in ends, value)):
            anchor, left, right = self._label(value)
            free = all(right < low or left > high for low, high in taken)
            found[value] = Tick(self.at(value), trimmed(value, self.digits) if free else "", anchor)
            if free:
                taken.append((left, right))
        return tuple(found[value] for value in self.values)

    def _label(self, value: float) -> tuple[str, float, float]:
        """Return the anchor of the label of `value`, and its ends with one letter of space."""
        place, letters = self.at(value), len(trimmed(value, self.digits))
        half, wide = letters * self.letter / 2, (letters + 1) * self.letter
        if place < half:
            return "start", place, place + wide
        return ("end", place - wide, place) if place > 100 - half else ("middle", place - wide / 2, place + wide / 2)


@dataclass(frozen=True)
class RatioMark:
    """A ratio with its interval, as text and drawn on an axis; places in per cent of the width."""

    ratio: Number | None
    interval: tuple[Number, Number] | None
    dot: float | None
    whisker: tuple[float, float] | None
    clipped: tuple[bool, bool]
    """True for ends of the interval beyond the axis, drawn as arrows."""


def ratio_mark(axis: Axis, value: float | None, interval: Bounds | None, inverse: bool = False) -> RatioMark:
    """Place a ratio with the ends of its interval, as far as they are known.

    Args:
        inverse: draw 1 / value.
    """
    ends = (interval.low, interval.high) if interval else None
    texts = ratios([value, *(ends or ())]) if value else []
    drawn = (1 / ends[1], 1 / ends[0]) if ends and inverse else ends
    return RatioMark(
        texts[0] if texts else None, (texts[1], texts[2]) if len(texts) == 3 else None,
        axis.at(1 / value if inverse else value) if value else None,
        (axis.at(drawn[0]), axis.at(drawn[1])) if drawn else None,
        (not axis.holds(drawn[0]), not axis.holds(drawn[1])) if drawn else (False, False))


def from_zero(values: Sequence[float], right: float = 98.0, letter: float = 2.2) -> Axis:
    """Make a linear axis from zero, or a logarithmic one if the values span more than a factor of 20.

    Without values the axis has no marks.
    """
    known = [value for value in values if value > 0]
    if not known:
        return Axis(0.0, 1.0, False, right=right, letter=letter)
    top, bottom = max(known), min(known)
    if top / bottom > 20:
        low, high = bottom / 1.2, top * 1.1
        return Axis(low, high, True, right=right, values=_decades(low, high), letter=letter)
    step = round_step(top / 5)
    marks = tuple(step * count for count in range(int(top / step) + 1))
    return Axis(0.0, top * 1.03, False, right=right, values=marks, letter=letter)


def linear(values: Sequence[float]) -> Axis:
    """Make a linear axis from 0 to 100 per cent around `values`, with about four marks."""
    low, high = min(values), max(values)
    room = (high - low) * 0.12 or abs(high) * 0.01 or 1.0
    low, high = low - room, high + room
    step = round_step((high - low) / 5)
    first = int(low // step) + 1
    marks = tuple(value for index in range(6) if (value := float(f"{step * (first + index):.10g}")) <= high)
    largest = max(abs(low), abs(high))
    return Axis(low, high, False, 0, 100, marks, digits=max(3, 2 + math.ceil(math.log10(largest / step))))


def from_nothing(high: float) -> Axis:
    """Make a linear axis from 0 to a little above `high`, 0 to 100 per cent, with about four marks."""
    step = round_step(high / 4)
    marks = tuple(float(f"{step * count:.10g}") for count in range(6) if step * count <= high * 1.03)
    return Axis(0.0, high * 1.03, False, 0, 100, marks)


def around_one(values: Sequence[float]) -> Axis:
    """Make a logarithmic axis for ratios, with 1 on it and some space at both ends."""
    known = [value for value in values if value > 0] or [1.0]
    low, high = min(*known, 1.0), max(*known, 1.0)
    space = max((high / low) ** 0.08, 1.04)
    low, high = low / space, high * space
    return Axis(low, high, True, values=_log_marks(low, high))


def log_ticks(low: float, high: float) -> tuple[float, ...]:
    """Return about three to nine marks of a figure's logarithmic axis, from a little below `low` to above `high`."""
    low, high = low / 1.15, high * 1.15
    if high / low > 5:
        return _decades(low, high)
    step = round_step((high - low) / 5)
    first, last = math.ceil(low / step), math.floor(high / step)
    return tuple(round(step * count, 12) for count in range(first, last + 1) if count)


def _decades(low: float, high: float) -> tuple[float, ...]:
    """Return the powers of ten in [low, high], and 2 and 5 times them if there are few."""
    powers = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)
    steps = (1, 2, 5) if high / low < 300 else (1,)
    return tuple(value for power in powers for step in steps if low <= (value := step * 10.0**power) <= high)


def _log_marks(low: float, high: float) -> tuple[float, ...]:
    """Return about five marks: 1 and round numbers on both sides of it."""
    if high / low > 30:
        return _decades(low, high)
    if high / low > 4:
        choices = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0)
        return tuple(value for value in choices if low <= value <= high)
    step = round_step((high - low) / 4)
    first, last = math.ceil((low - 1) / step), math.floor((high - 1) / step)
    return tuple(round(1 + step * count, 6) for count in range(first, last + 1))


def round_step(rough: float) -> float:
    """Return the smallest of 1, 2, 2.5, 5 x 10^k that is not below `rough`."""
    base = 10.0 ** math.floor(math.log10(rough))
    return next(step * base for step in STEPS if step * base >= rough * (1 - 1e-9))


WIDTH, HEIGHT = 440, 210
LEFT, RIGHT, TOP, BOTTOM = 52, 432, 10, 166
"""Edges of the plot area, in units of the view box."""
INK = -1
"""Colour of what belongs to no line: drawn above all others."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Values to draw: a line through `points`, or only marks at them."""

    color: int
    points: tuple[tuple[float, float], ...]
    """(x, y) in the units of the axes."""
    words: tuple[str, ...] = ()
    """Tooltip of each point; empty: no marks."""
    symbol: str = "circle"
    dash: str = ""
    """Line style; empty: no line."""
    thin: bool = False
    """A bound, or single trials: drawn below the others, and lighter."""
    stepped: bool = False
    """The line keeps its height until the next point."""
    spans: tuple[tuple[float, float], ...] = ()
    """Ends of the horizontal interval of each point."""


@dataclass(frozen=True, slots=True)
class Sketch:
    """One figure: traces on two axes from 0 to 100 per cent, placed in units of the view box."""

    title: str
    counted: str
    across: str
    """Name of the horizontal axis."""
    traces: Sequence[Trace]
    x: Axis
    y: Axis
    origins: tuple[str, ...]
    names: Mapping[float, str] = field(default_factory=dict)
    """Texts of the marks of the vertical axis, in place of their values."""
    goal: float | None = None
    """Place of the target on the horizontal axis."""
    level: float | None = None
    """Place of the target on the vertical axis."""

    def right(self, value: float) -> float:
        """Return the x of a value."""
        return round(LEFT + (RIGHT - LEFT) * self.x.at(value) / 100, 1)

    def down(self, value: float) -> float:
        """Return the y of a value."""
        return round(BOTTOM - (BOTTOM - TOP) * self.y.at(value) / 100, 1)

    @property
    def columns(self) -> list[tuple[float, str]]:
        """(x, text) of the marks of the horizontal axis."""
        return [(self.right(value), tick.text) for value, tick in zip(self.x.values, self.x.ticks, strict=True)]

    @property
    def rows(self) -> list[tuple[float, str]]:
        """(y, text) of the marks of the vertical axis."""
        return [(self.down(value), self.names.get(value) or trimmed(value, self.y.digits)) for value in self.y.values]

    @property
    def layers(self) -> list[Trace]:
        """The traces, those drawn above others last."""
        return sorted(self.traces, key=lambda trace: (trace.color == INK, not trace.thin))

    def path(self, trace: Trace) -> str:
        """Return the path of the line of a trace; "" if it has none."""
        if not trace.dash:
            return ""
        points = [(self.right(x), self.down(y)) for x, y in trace.points]
        if not trace.stepped:
            return "M" + "L".join(f"{x:g},{y:g}" for x, y in points)
        (x, y), *rest = points
        return f"M{x:g},{y:g}" + "".join(f"H{x:g}V{y:g}" for x, y in rest)
