"""A scale model as one self-contained page: measured and modelled steps, speed-ups, the parts of a step."""

from __future__ import annotations

from typing import Any

from repro.papers.predict.prediction import HEAD, ScaleLine, ScaleModel, cells, check_text, line_text, notes

from ..page.charts.plot import error_bars, log_figure
from ..page.document import page_scripts, rendered


def render(model: ScaleModel) -> str:
    """Render the page. It works offline; its tables need no JavaScript."""
    return rendered("predict.html.j2", {
        "suite": model.suite, "origin": model.origin, "scaling": model.scaling, "check": check_text(model),
        "assumptions": model.assumptions, "left_out": model.left_out,
        "lines": [_line(at, item) for at, item in enumerate(model.lines)],
    }, page_scripts("report.js"))


def _line(at: int, item: ScaleLine) -> dict[str, Any]:
    charts = [
        {"name": f"step-{at}", "title": "Seconds of a step", "figure": _figure(_steps(item), "seconds"),
         "counted": "line: modelled; circles: measured and fitted; diamonds: measured, not fitted"},
    ]
    if any(row.speed_up for row in item.rows):
        charts.append({"name": f"speed-{at}", "title": "Speed-up in samples a second",
                       "figure": _figure(_speeds(item), "speed-up"), "counted": "modelled; dashes: linear speed-up"})
    if any(row.to_target for row in item.rows):
        charts.append({"name": f"target-{at}", "title": "Seconds to the target",
                       "figure": _figure(_targets(item), "seconds"), "counted": "line: modelled; circles: measured"})
    rows = [cells(row) for row in item.rows]
    used = [column for column in range(len(HEAD)) if any(row[column] for row in rows)]
    return {"at": at, "label": item.label, "text": line_text(item), "charts": charts, "notes": notes(item),
            "head": [HEAD[column] for column in used], "rows": [[row[column] for column in used] for row in rows]}


def _steps(item: ScaleLine) -> list[dict[str, Any]]:
    rows = [row for row in item.rows if row.step]
    counts = [row.processes for row in rows]
    found = [
        _trace("modelled", counts, [(row.step.value, row.step.low, row.step.high) for row in rows if row.step], "--c0"),
        _curve("computation, modelled", counts, [row.compute for row in rows], "--c2", "2px,3px"),
        _curve("communication, modelled", counts, [row.communication or None for row in rows], "--c3", "6px,3px"),
    ]
    for name, fitted, symbol in (("measured, fitted", True, "circle"), ("measured, not fitted", False, "diamond")):
        known = [row for row in rows if row.measured and row.fitted == fitted]
        if known:
            found.append(_points(name, [row.processes for row in known],
                                 [row.measured.value for row in known if row.measured], symbol))
    return found


def _speeds(item: ScaleLine) -> list[dict[str, Any]]:
    rows = [row for row in item.rows if row.speed_up]
    counts = [row.processes for row in rows]
    values = [(row.speed_up.value, row.speed_up.low, row.speed_up.high) for row in rows if row.speed_up]
    ideal: list[float | None] = [count / item.smallest for count in counts]
    return [_trace("modelled", counts, values, "--c0"), _curve("ideal", counts, ideal, "--ink", "8px,4px")]


def _targets(item: ScaleLine) -> list[dict[str, Any]]:
    rows = [row for row in item.rows if row.to_target]
    values = [(row.to_target.value, row.to_target.low, row.to_target.high) for row in rows if row.to_target]
    known = [row for row in item.rows if row.measured_target]
    found = [_trace("modelled", [row.processes for row in rows], values, "--c0")]
    if known:
        found.append(_points("measured", [row.processes for row in known],
                             [row.measured_target.value for row in known if row.measured_target], "circle"))
    return found


def _trace(
    name: str, counts: list[int], values: list[tuple[float, float | None, float | None]], color: str
) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "lines", "name": name, "x": counts, "y": [value for value, _, _ in values],
        "line": {"color": color, "width": 1.6}, "hovertemplate": "%{fullData.name}: %{y:,.4~r}<extra></extra>",
        "error_y": error_bars([value for value, _, _ in values],
                              [(low or value, high or value) for value, low, high in values], color),
    }


def _curve(name: str, counts: list[int], values: list[float | None], color: str, dash: str) -> dict[str, Any]:
    return {"type": "scatter", "mode": "lines", "name": name, "x": counts, "y": values,
            "line": {"color": color, "dash": dash, "width": 1.2},
            "hovertemplate": "%{fullData.name}: %{y:,.4~r}<extra></extra>"}


def _points(name: str, counts: list[int], values: list[float], symbol: str) -> dict[str, Any]:
    return {"type": "scatter", "mode": "markers", "name": name, "x": counts, "y": values,
            "marker": {"symbol": symbol, "size": 9, "color": "--c1"},
            "hovertemplate": "%{fullData.name}: %{y:,.4~r}<extra></extra>"}


def _figure(traces: list[dict[str, Any]], unit: str) -> dict[str, Any]:
    return log_figure(traces, "processes", unit, str, top=34, legend_y=-0.34)
