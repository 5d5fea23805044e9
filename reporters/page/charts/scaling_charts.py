"""The figures of scaling: measured lines and bounds on two logarithmic axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from repro.tables.text import wrapped

from ..axis import log_ticks, tick_text
from .bounds import StepBounds
from .curves import DASHES as PATTERNS
from .curves import Chart
from .scaling_line import ScalingLine, ScalingPoint

BOUND_LINES: tuple[tuple[Callable[[StepBounds], float | None], str, str], ...] = (
    (lambda bounds: bounds.compute, "compute alone", "dot"),
    (lambda bounds: bounds.one_after_the_other, "compute + bytes / link rate", "dash"),
    (lambda bounds: bounds.modelled, "compute + fitted cost model", "dashdot"),
)
"""(seconds of a bound, its name, dash)."""


def scaling_chart(
    name: str, title: str, counted: str, traces: Sequence[dict[str, Any] | None], lines: Sequence[ScalingLine],
    unit: str,
) -> Chart:
    data = [trace for trace in traces if trace]
    ticks = sorted({point.processes for line in lines for point in line.points})
    drawn = [value for trace in data for value in _extent(trace) if value > 0]
    return Chart(f"scaling-{name}", title, counted, {"data": data, "layout": _layout(unit, ticks, drawn)},
                 f"{title} against the number of processes, {counted}; {len(lines)} lines, both axes logarithmic")


def step_traces(line: ScalingLine) -> list[dict[str, Any] | None]:
    every = [(point.processes, 1e3 * value, f"cell {point.mark.number}") for point in line.points
             for value in point.steps]
    trials = {
        "type": "scatter", "mode": "markers", "name": line.label, "legendgroup": f"line-{line.number}", "opacity": 0.35,
        "x": [x for x, _, _ in every], "y": [_short(y) for _, y, _ in every], "hoverinfo": "skip",
        "marker": {"symbol": line.symbol, "size": 5, "color": f"--c{line.color}"},
    }
    found: list[dict[str, Any] | None] = [trials if every else None]
    for bound, words, dash in BOUND_LINES:
        def value(point: ScalingPoint, bound: Callable[[StepBounds], float | None] = bound) -> float | None:
            known = bound(point.bounds)
            return None if known is None else 1e3 * known

        if any(value(point) is not None and point.processes > 1 for point in line.points):
            found.append(drawn_line(line, value, words=words, dash=dash))
    return [*found, drawn_line(line, lambda point: None if point.bounds.step is None else 1e3 * point.bounds.step)]


def drawn_line(
    line: ScalingLine, value: Callable[[ScalingPoint], float | None], words: str = "", dash: str = "",
    intervals: bool = False,
) -> dict[str, Any] | None:
    """Return one line of a chart; None if it has no value."""
    # A logarithmic axis cannot show 0.
    points = [(point, known) for point in line.points if (known := value(point)) is not None and known > 0]
    if not points:
        return None
    color = f"--c{line.color}"
    label = f"{wrapped(line.label)}{f'<br>{words}' if words else ''}"
    found: dict[str, Any] = {
        "type": "scatter", "mode": "lines" if words else "lines+markers", "name": line.label, "meta": [label],
        "legendgroup": f"line-{line.number}", "x": [point.processes for point, _ in points],
        "y": [_short(known) for _, known in points],
        "line": {"color": color, "dash": PATTERNS[dash or line.dash], "width": 1.1 if words else 1.8},
        "hovertemplate": "%{meta[0]}<br>%{x} processes: %{y:.4~g}<extra></extra>",
    }
    if not words:
        found["marker"] = {"symbol": line.symbol, "size": 7, "color": color}
    if intervals:
        ends = [point.interval or (known, known) for point, known in points]
        found["error_y"] = {
            "type": "data", "symmetric": False, "thickness": 1, "width": 3, "color": color,
            "array": [_short(high - known) for (_, known), (_, high) in zip(points, ends, strict=True)],
            "arrayminus": [_short(known - low) for (_, known), (low, _) in zip(points, ends, strict=True)],
        }
    return found


def ideal(lines: Sequence[ScalingLine], origins: Sequence[str]) -> list[dict[str, Any]]:
    """Return the line of ideal speed-up, p times as fast; none if ranks share cores by design."""
    ticks = sorted({point.processes for line in lines for point in line.points})
    if set(origins) != {"measured"} or not any(point.speedup for line in lines for point in line.points):
        return []
    return [{
        "type": "scatter", "mode": "lines", "name": "p times as fast", "x": ticks, "y": ticks, "legendgroup": "ideal",
        "line": {"color": "--ink", "dash": PATTERNS["longdash"], "width": 1.1},
        "hovertemplate": "p processes, p times as fast: %{y}<extra></extra>",
    }]


def _extent(trace: dict[str, Any]) -> list[float]:
    """Return all heights of a trace, including the ends of its intervals."""
    heights = [value for value in trace["y"] if value is not None]
    bars = trace.get("error_y")
    if bars is None:
        return heights
    return [*heights, *(value + up for value, up in zip(heights, bars["array"], strict=True)),
            *(value - down for value, down in zip(heights, bars["arrayminus"], strict=True))]


def _short(value: float) -> float:
    return float(f"{value:.7g}")


def _layout(unit: str, ticks: Sequence[int], drawn: Sequence[float]) -> dict[str, Any]:
    """Return the layout; `drawn`: all heights. Within one decade plotly.js would label only one or two ticks."""
    marks = log_ticks(min(drawn), max(drawn)) if drawn else ()
    grid = {"gridcolor": "--rule", "linecolor": "--rule", "zeroline": False, "automargin": True, "ticks": "outside",
            "tickcolor": "--rule", "ticklen": 4, "type": "log"}
    return {
        "autosize": True, "showlegend": False, "hovermode": "closest", "font": {"size": 13, "color": "--ink"},
        "margin": {"l": 60, "r": 14, "t": 26, "b": 50}, "paper_bgcolor": "--surface", "plot_bgcolor": "--surface",
        "hoverlabel": {"align": "left", "bgcolor": "--raised", "bordercolor": "--rule", "font": {"color": "--ink"}},
        "modebar": {"bgcolor": "--surface", "color": "--muted", "activecolor": "--ink"},
        "xaxis": {**grid, "title": {"text": "processes", "standoff": 8}, "tickvals": list(ticks),
                  "ticktext": [str(tick) for tick in ticks]},
        "yaxis": {**grid, "title": {"text": unit, "standoff": 8}, "tickvals": list(marks),
                  "ticktext": [tick_text(mark) for mark in marks]},
    }
