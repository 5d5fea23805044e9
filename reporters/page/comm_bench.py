"""The communication benchmark as one self-contained page: time against size with the bound, ratios, bandwidths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from repro.bench.comm import table
from repro.bench.comm.result import BASELINE, CommOutcome, WorldResult

from .cells import COLORS, SYMBOLS
from .charts.plot import error_bars, log_figure
from .document import page_scripts, rendered

DASHES = ("solid", "6px,3px", "2px,2px")


def render(outcome: CommOutcome) -> str:
    """Render the page. It works offline; its tables need no JavaScript."""
    return rendered("comm.html.j2", {
        "origin": outcome.origin, "where": table.origin_text(outcome),
        "worlds": [_world(item) for item in outcome.worlds], "notes": table.NOTE, "head": table.HEAD,
        "repeat": f"{outcome.repetitions} repetitions at most, {outcome.seconds:g} s per point, seed {outcome.seed}",
    }, page_scripts("report.js"))


def _world(world: WorldResult) -> dict[str, Any]:
    return {
        "world": world.world, "links": table.links_text(world), "model": table.model_text(world),
        "findings": table.bound_texts(world),
        "charts": [
            {"name": f"time-{world.world}", "title": f"Time of an all-reduce on {world.world} ranks",
             "counted": "median over repetitions; dashes: the bound 2(p-1)/p S/B; dots: modelled",
             "figure": _figure(_times(world), "seconds")},
            {"name": f"ratio-{world.world}", "title": "Ratio to the backend's time",
             "counted": "paired by repetition, 95 % intervals", "figure": _figure(_ratios(world), "ratio")},
            {"name": f"bandwidth-{world.world}", "title": "Bus bandwidth",
             "counted": "as nccl-tests defines it; dashes: rate of the slowest link",
             "figure": _figure(_bandwidths(world), "GB/s")},
        ],
        "rows": [table.point_row(point, world) for point in sorted(world.points, key=lambda item: item.size)],
        "overall": table.overall_rows(world),
        "skipped": [(item.algorithm, table.size_text(item.size) if item.size else "all sizes", item.reason)
                    for item in world.skipped],
        "effective": sorted(world.effective.items()),
    }


def _times(world: WorldResult) -> list[dict[str, Any]]:
    traces = []
    for index, name in enumerate(world.algorithms):
        points = world.of(name)
        traces.append(_trace(index, name, list(points), [item.median_seconds for item in points.values()]))
        modelled = [item.model_seconds for item in points.values()]
        if None not in modelled:
            traces.append(_line(f"{name}, modelled", list(points), modelled, f"--c{index % COLORS}", "2px,3px", name))
    bound = {point.size: point.bound_seconds for point in world.points}
    sizes = sorted(bound)
    return [*traces, _line("bound", sizes, [bound[size] for size in sizes], "--ink", "8px,4px", "bound")]


def _ratios(world: WorldResult) -> list[dict[str, Any]]:
    traces = []
    for index, name in enumerate(world.algorithms):
        known = {size: point.ratio for size, point in world.of(name).items() if point.ratio}
        if name == BASELINE or not known:
            continue
        trace = _trace(index, name, list(known), [ratio.value for ratio in known.values()])
        trace["error_y"] = error_bars([ratio.value for ratio in known.values()],
                                      [(ratio.low, ratio.high) for ratio in known.values()], f"--c{index % COLORS}")
        traces.append(trace)
    return [*traces, _line("the backend", world.sizes, [1.0] * len(world.sizes), "--ink", "8px,4px", "bound")]


def _bandwidths(world: WorldResult) -> list[dict[str, Any]]:
    traces = [
        _trace(index, name, list(points := world.of(name)), [item.busbw(world.world) for item in points.values()])
        for index, name in enumerate(world.algorithms)
    ]
    rate = world.bytes_per_second / 1e9
    return [*traces, _line("B", world.sizes, [rate] * len(world.sizes), "--ink", "8px,4px", "bound")]


def _trace(index: int, name: str, sizes: Sequence[int], values: Sequence[float]) -> dict[str, Any]:
    color = f"--c{index % COLORS}"
    return {
        "type": "scatter", "mode": "lines+markers", "name": name, "legendgroup": name, "x": list(sizes),
        "y": list(values), "customdata": [table.size_text(size) for size in sizes],
        "line": {"color": color, "dash": DASHES[index // COLORS % len(DASHES)], "width": 1.6},
        "marker": {"symbol": SYMBOLS[index % len(SYMBOLS)], "size": 6, "color": color},
        "hovertemplate": "%{fullData.name}<br>%{customdata}: %{y:,.4~r}<extra></extra>",
    }


def _line(
    name: str, sizes: Sequence[int], values: Sequence[Any], color: str, dash: str, group: str
) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "lines", "name": name, "legendgroup": group, "x": list(sizes), "y": list(values),
        "showlegend": group == "bound", "line": {"color": color, "dash": dash, "width": 1.1},
        "hovertemplate": f"{name}: %{{y:,.4~r}}<extra></extra>",
    }


def _figure(traces: list[dict[str, Any]], unit: str) -> dict[str, Any]:
    return log_figure(traces, "bytes of each rank's buffer", unit, table.size_text)
