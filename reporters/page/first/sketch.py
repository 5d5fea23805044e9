"""A small figure of the first screen, drawn as SVG without a script: lines and marks on two axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..axis import Axis, Tick, tick_text

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
class Drawn:
    """A trace in units of the view box."""

    color: int
    symbol: str
    dash: str
    thin: bool
    path: str
    marks: tuple[tuple[float, float, str], ...]
    """(x, y, tooltip)."""
    spans: tuple[tuple[float, float, float], ...]
    """(left, right, y)."""


@dataclass(frozen=True, slots=True)
class Sketch:
    """One figure."""

    title: str
    counted: str
    across: str
    """Name of the horizontal axis."""
    columns: tuple[tuple[float, str, str], ...]
    """Marks of the horizontal axis: (x, text, anchor)."""
    rows: tuple[tuple[float, str], ...]
    """Marks of the vertical axis: (y, text)."""
    traces: tuple[Drawn, ...]
    goal: float | None
    """x of the vertical line at the target."""
    level: float | None
    """y of the horizontal line at the target."""
    origins: tuple[str, ...]


def sketch(
    title: str, counted: str, across: str, traces: Sequence[Trace], x: Axis, y: Axis, origins: tuple[str, ...],
    names: dict[float, str] | None = None, goal: float | None = None, level: float | None = None,
) -> Sketch:
    """Place the traces.

    Args:
        x, y: axes from 0 to 100 per cent.
        names: texts of the marks of the vertical axis; None: their values.
    """
    def right(value: float) -> float:
        return round(LEFT + (RIGHT - LEFT) * x.at(value) / 100, 1)

    def down(value: float) -> float:
        return round(BOTTOM - (BOTTOM - TOP) * y.at(value) / 100, 1)

    return Sketch(
        title, counted, across, tuple((right_of(tick), tick.text, tick.anchor) for tick in x.ticks),
        tuple((down(value), (names or {}).get(value) or tick_text(value, y.digits)) for value in y.values),
        tuple(Drawn(
            trace.color, trace.symbol, trace.dash, trace.thin,
            _path([(right(a), down(b)) for a, b in trace.points], trace.stepped) if trace.dash else "",
            tuple((right(a), down(b), words) for (a, b), words in zip(trace.points, trace.words, strict=False)),
            tuple((right(low), right(high), down(b)) for (low, high), (_, b)
                  in zip(trace.spans, trace.points, strict=False)),
        ) for trace in sorted(traces, key=lambda trace: (trace.color == INK, not trace.thin))),
        None if goal is None else right(goal), None if level is None else down(level), origins,
    )


def right_of(tick: Tick) -> float:
    """Return the place of a mark of the horizontal axis."""
    return round(LEFT + (RIGHT - LEFT) * tick.at / 100, 1)


def _path(points: Sequence[tuple[float, float]], stepped: bool) -> str:
    """Return the path of a line."""
    if not stepped:
        return "M" + "L".join(f"{x:g},{y:g}" for x, y in points)
    (x, y), *rest = points
    return f"M{x:g},{y:g}" + "".join(f"H{x:g}V{y:g}" for x, y in rest)
