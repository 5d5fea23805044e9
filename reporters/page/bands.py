"""Traces behind the lines of single trials: the range of each cell and the bracket of each crossing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from repro.record.results import Point, Result

from .cells import CellMark

Where = Callable[[Point], float]


def thinned(result: Result, most: int) -> list[Point]:
    """Select at most about `most` evaluations of a trial, evenly spread, for drawing only.

    The first, the last and those on both sides of the crossing are always selected.
    """
    points = list(result.curve)
    if len(points) <= most:
        return points
    step = len(points) / most
    kept = {min(len(points) - 1, int(index * step)) for index in range(most)} | {0, len(points) - 1}
    bracket = result.bracket
    if bracket is not None:
        kept |= {index for index, point in enumerate(points)
                 if point.samples in (bracket.miss_samples, bracket.hit_samples)}
    return [points[index] for index in sorted(kept)]


def band(mark: CellMark, results: Sequence[Result], where: Where, most: int) -> dict[str, Any] | None:
    """Return the trace of the lowest to highest quality over the trials of a cell, at each evaluation.

    It ends where the shortest trial ends: beyond that the range would cover the slow trials only. x is the median over
    trials. None if there are fewer than two trials or two evaluations.
    """
    curves = [[point for point in item.curve if point.value is not None] for item in results]
    common = min((len(curve) for curve in curves), default=0)
    if len(curves) < 2 or common < 2:
        return None
    shown = range(0, common, -(-common // most))
    rows = [[curve[index] for curve in curves] for index in shown]
    x = [_short(median(where(point) for point in row)) for row in rows]
    low = [min(point.value or 0.0 for point in row) for row in rows]
    high = [max(point.value or 0.0 for point in row) for row in rows]
    return {
        "type": "scatter", "mode": "lines", "uid": f"band-{mark.number}", "name": f"range of cell {mark.number}",
        "legendgroup": str(mark.number), "x": [*x, *reversed(x)], "y": [*high, *reversed(low)], "fill": "toself",
        "fillcolor": f"--c{mark.color}", "line": {"width": 0, "color": f"--c{mark.color}"}, "opacity": 0.13,
        "hoverinfo": "skip", "showlegend": False,
    }


def brackets(mark: CellMark, results: Sequence[Result], where: Where) -> dict[str, Any] | None:
    """Return the trace of each line from the last evaluation that missed the target to the first that reached it."""
    x: list[float | None] = []
    y: list[float | None] = []
    for item in results:
        ends = _ends(item)
        if ends is None:
            continue
        miss, hit = ends
        x += [_short(where(miss)) if miss else 0.0, _short(where(hit)), None]
        y += [miss.value if miss else hit.value, hit.value, None]
    if not x:
        return None
    return {
        "type": "scatter", "mode": "lines", "uid": f"bracket-{mark.number}", "name": f"crossings of cell {mark.number}",
        "legendgroup": str(mark.number), "x": x, "y": y, "opacity": 0.28, "hoverinfo": "skip",
        "showlegend": False, "line": {"width": 7, "color": f"--c{mark.color}"},
    }


def _ends(result: Result) -> tuple[Point | None, Point] | None:
    """Return (last evaluation that missed, first that hit); the former is None if the first evaluation hit."""
    bracket = result.bracket
    if bracket is None:
        return None
    by_samples = {point.samples: point for point in result.curve if point.value is not None}
    hit, miss = by_samples.get(bracket.hit_samples), by_samples.get(bracket.miss_samples)
    if hit is None or (miss is None and bracket.miss_samples):
        return None
    return miss, hit


def _short(value: float) -> float:
    """Round to the digits that a figure can show."""
    return float(f"{value:.7g}")
