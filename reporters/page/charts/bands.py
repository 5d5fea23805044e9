"""Traces of a cell as a whole: the median and the range of its trials, the bracket of each crossing, the misses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from repro.record.result.results import Point, Result
from repro.tables.text import wrapped

from ..cells import CellMark
from .plot import short

LEAST_TRIALS = 3
"""Fewer have no median that a single trial would not decide."""
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
    x = [short(median(where(point) for point in row)) for row in rows]
    low = [min(point.value or 0.0 for point in row) for row in rows]
    high = [max(point.value or 0.0 for point in row) for row in rows]
    return {
        "type": "scatter", "mode": "lines", "uid": f"band-{mark.number}", "name": f"range of cell {mark.number}",
        "legendgroup": str(mark.number), "x": [*x, *reversed(x)], "y": [*high, *reversed(low)], "fill": "toself",
        "fillcolor": f"--c{mark.color}", "line": {"width": 0, "color": f"--c{mark.color}"}, "opacity": 0.13,
        "hoverinfo": "skip", "showlegend": False,
    }


def middle(mark: CellMark, results: Sequence[Result], where: Where, dash: str, most: int) -> dict[str, Any] | None:
    """Return the trace of the median quality over the trials of a cell, at each evaluation.

    It ends where fewer than half of the trials go on; a trial that has ended counts with its last value, so that the
    fast ones do not leave the median. x is the median over those that go on. None below three trials
    or two evaluations.
    """
    curves = [[point for point in item.curve if point.value is not None] for item in results]
    if len(curves) < LEAST_TRIALS or not all(curves):
        return None
    lengths = sorted(map(len, curves), reverse=True)
    common = lengths[(len(curves) + 1) // 2 - 1]
    if common < 2:
        return None
    shown = sorted({*range(0, common, -(-common // most)), common - 1})
    x = [median(where(curve[index]) for curve in curves if index < len(curve)) for index in shown]
    y = [median(curve[min(index, len(curve) - 1)].value or 0.0 for curve in curves) for index in shown]
    return {
        "type": "scatter", "mode": "lines", "uid": f"median-{mark.number}", "name": f"cell {mark.number}",
        "legendgroup": str(mark.number), "x": [short(value) for value in x], "y": [short(value) for value in y],
        "line": {"color": f"--c{mark.color}", "dash": dash, "width": 2.6},
        "meta": [f"<b>{mark.number}</b> {wrapped(mark.label)}<br>median of {len(curves)} trials"],
        "hovertemplate": "%{meta[0]}<br>%{x:.4~g}: %{y:.4~g}<extra></extra>",
    }


def misses(mark: CellMark, results: Sequence[Result], where: Where) -> dict[str, Any] | None:
    """Return the trace of the ends of trials that did not end well; None if all did."""
    ends = [(item, item.curve[-1]) for item in results if item.status != "ok" and item.curve[-1].value is not None]
    if not ends:
        return None
    return {
        "type": "scatter", "mode": "markers", "uid": f"missed-{mark.number}", "name": f"missed, cell {mark.number}",
        "legendgroup": str(mark.number), "showlegend": False,
        "x": [short(where(point)) for _, point in ends], "y": [point.value for _, point in ends],
        "marker": {"symbol": "x-thin-open", "size": 10, "color": f"--c{mark.color}",
                   "line": {"width": 1.5, "color": f"--c{mark.color}"}},
        "customdata": [item.repeat for item, _ in ends],
        "hovertemplate": f"<b>{mark.number}</b> seed %{{customdata}} ended without the target<extra></extra>",
    }


def brackets(mark: CellMark, results: Sequence[Result], where: Where) -> dict[str, Any] | None:
    """Return the trace of each line from the last evaluation that missed the target to the first that reached it."""
    x: list[float | None] = []
    y: list[float | None] = []
    for miss, hit in filter(None, map(_ends, results)):
        if miss is not None:
            x += [short(where(miss)), short(where(hit)), None]
            y += [miss.value, hit.value, None]
    if not x:
        return None
    return {
        "type": "scatter", "mode": "lines", "uid": f"bracket-{mark.number}", "name": f"crossings of cell {mark.number}",
        "legendgroup": str(mark.number), "x": x, "y": y, "opacity": 0.28, "hoverinfo": "skip",
        "showlegend": False, "line": {"width": 7, "color": f"--c{mark.color}"},
    }


def first_hits(mark: CellMark, results: Sequence[Result], where: Where) -> dict[str, Any] | None:
    """Return the trace of trials that reached the target at their first evaluation: left-censored.

    A dotted line runs from the beginning to an open triangle at the evaluation, because the crossing is somewhere in
    between. None if there is no such trial.
    """
    x: list[float | None] = []
    y: list[float | None] = []
    seeds: list[int | None] = []
    for item in results:
        ends = _ends(item)
        if ends and ends[0] is None:
            x += [0.0, short(where(ends[1])), None]
            y += [ends[1].value, ends[1].value, None]
            seeds += [None, item.repeat, None]
    if not x:
        return None
    return {
        "type": "scatter", "mode": "lines+markers", "uid": f"first-{mark.number}",
        "name": f"first hits of cell {mark.number}", "legendgroup": str(mark.number), "x": x, "y": y,
        "showlegend": False, "line": {"width": 1.2, "dash": "2px,3px", "color": f"--c{mark.color}"},
        "marker": {"symbol": "triangle-left-open", "size": [0, 10, 0] * (len(x) // 3), "color": f"--c{mark.color}",
                   "line": {"width": 1.5, "color": f"--c{mark.color}"}},
        "customdata": seeds,
        "hovertemplate": f"<b>{mark.number}</b> seed %{{customdata}} reached the target by its first evaluation, "
                         "%{x:.4~g}, or earlier<extra></extra>",
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
