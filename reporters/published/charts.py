"""Figures of published results in plain data: quality against minutes, batch size against epochs.

Curves are thinned here, for display; every figure in the tables was computed from all points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from repro.core.errors import visible
from repro.published.cells import BatchCost, BatchCosts
from repro.published.record import PublishedPoint, PublishedReference, PublishedResult
from repro.tables.text import plural, trimmed, wrapped

from ..page.axis import log_ticks
from ..page.cells import COLORS, SYMBOLS
from ..page.charts.plot import DASHES, Chart, layout, log_ticks_of, short

POINTS_A_RUN = 40
POINTS_A_PAGE = 60_000
"""Points of all curves of a page above which each run keeps fewer, down to `LEAST`."""
LEAST = 4
MARKERS_UP_TO = 1_500
MOST_TICKS = 7
SPAN = 20.0
"""Longest divided by shortest time above which the axis is logarithmic."""


@dataclass(frozen=True, slots=True)
class SystemLine:
    """The runs of one system, and its style in the figures."""

    number: int
    label: str
    results: tuple[PublishedResult, ...]

    @property
    def color(self) -> str:
        return f"--c{(self.number - 1) % COLORS}"

    @property
    def symbol(self) -> str:
        return SYMBOLS[(self.number - 1) % len(SYMBOLS)]

    @property
    def dash(self) -> str:
        return list(DASHES.values())[(self.number - 1) // COLORS % len(DASHES)]


def budget(runs: int) -> int:
    """Return the points that each of `runs` curves can keep."""
    return max(LEAST, min(POINTS_A_RUN, POINTS_A_PAGE // max(1, runs)))


def thinned(points: Sequence[PublishedPoint], most: int) -> list[PublishedPoint]:
    """Select at most `most` points, evenly spread, always with the first and the last two.

    The last two are the miss and the hit if the run reached its target.
    """
    if len(points) <= most:
        return list(points)
    inner, kept = len(points) - 3, max(0, most - 3)
    middle = sorted({1 + index * inner // kept for index in range(kept)}) if kept else []
    return [points[0], *(points[index] for index in middle), points[-2], points[-1]]


def curves(name: str, lines: Sequence[SystemLine], most: int) -> list[Chart]:
    """Draw quality against minutes: one figure for each metric, one trace for each system."""
    metrics = sorted({point.metric for line in lines for run in line.results for point in run.curve})
    found = []
    for index, metric in enumerate(metrics):
        traces = [trace for line in lines if (trace := _curve(line, metric, most))]
        times = [value for trace in traces for value in trace["x"] if value]
        if not times:
            continue
        ends = [max(value for value in trace["x"] if value is not None) for trace in traces]
        log = max(ends) / max(min(ends), 1e-9) > SPAN
        if sum(len(trace["x"]) for trace in traces) > MARKERS_UP_TO:
            for trace in traces:
                trace["mode"] = "lines"
        word = visible(metric) or "quality"
        targets = sorted({run.target[metric] for line in lines for run in line.results if metric in run.target})
        least = min(times)
        looks = layout("minutes" + (" (logarithmic)" if log else ""), word)
        if log:
            looks["xaxis"] |= log_ticks_of(log_ticks(least, max(times)), trimmed)
            for trace in traces:  # a logarithmic axis cannot show 0
                trace["x"] = [None if value is None else max(value, least) for value in trace["x"]]
        looks["shapes"] = [{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": target, "y1": target,
                             "line": {"color": "--ink", "width": 1, "dash": "4px,3px"}} for target in targets[:4]]
        runs = sum(len(line.results) for line in lines)
        found.append(Chart(
            f"{name}-curve-{index}", f"{word.capitalize() if not metric else word} against minutes",
            "by the program's clock, one line per run" + (f"; dashed: target {', '.join(f'{t:g}' for t in targets[:4])}"
                                                         if targets else "; the target is unknown"),
            {"data": traces, "layout": looks},
            f"{word} against minutes: {plural(runs, 'run')} of {plural(len(traces), 'system')}, thinned for display",
        ))
    return found


def _curve(line: SystemLine, metric: str, most: int) -> dict[str, Any] | None:
    """Put all runs of a cell into one trace, separated by gaps."""
    x: list[float | None] = []
    y: list[float | None] = []
    for run in line.results:
        known = [point for point in run.curve if point.metric == metric and point.value is not None]
        for point in thinned(known, most):
            x.append(short(point.seconds / 60))
            y.append(short(point.value or 0.0))
        if known:
            x.append(None)
            y.append(None)
    if not any(x):
        return None
    return {
        "type": "scatter", "mode": "lines+markers", "name": f"{line.number}", "x": x[:-1], "y": y[:-1],
        "connectgaps": False, "opacity": 0.8, "meta": [f"<b>{line.number}</b> {wrapped(visible(line.label))}"],
        "line": {"color": line.color, "width": 1.3, "dash": line.dash},
        "marker": {"color": line.color, "symbol": line.symbol, "size": 5},
        "hovertemplate": "%{meta[0]}<br>%{x:,.4~r} min: %{y:,.4~r}<extra></extra>",
    }


def batch_chart(
    name: str, by_round: Sequence[BatchCosts], labels: dict[str, str],
    references: Sequence[PublishedReference],
) -> Chart | None:
    """Draw the cost of the target against the batch size, one colour for each round.

    Runs are points, and a line joins the medians. The reference is grey and hollow.
    """
    unit = "epochs" if all(of.unit == "epochs" for of in by_round) else "samples"
    traces: list[dict[str, Any]] = []
    for index, of in enumerate(by_round):
        known = of.points(unit)
        if not known:
            continue
        color, symbol = f"--c{index % COLORS}", SYMBOLS[index % len(SYMBOLS)]
        traces += [_middle(known, color), {
            "type": "scatter", "mode": "markers", "name": visible(of.round), "showlegend": True,
            "x": [cost.global_batch_size for cost, _ in known], "y": [value for _, value in known],
            "text": [wrapped(visible(labels.get(cost.cell_id, cost.cell_id))) for cost, _ in known],
            "marker": {"color": color, "symbol": symbol, "size": 8, "opacity": 0.75},
            "hovertemplate": "%{text}<br>batch %{x}: %{y:.5~g} " + unit + "<extra></extra>",
        }]
    if not traces:
        return None
    traces += _reference_lines([item for item in references if item.unit == unit])
    looks = layout("global batch, samples (logarithmic)", f"{unit} to the target")
    looks["xaxis"] |= log_ticks_of(batch_ticks([size for trace in traces for size in trace["x"]]), "{:,}".format)
    looks["yaxis"]["rangemode"] = "tozero"
    looks |= {"showlegend": True, "legend": {"orientation": "h", "y": -0.28, "font": {"size": 12}}}
    return Chart(
        f"{name}-batch", f"Batch size against {unit} to the target",
        "each run that reached the target is a point; a line joins the medians of each batch in a round",
        {"data": traces, "layout": looks},
        f"{unit} to the target against global batch, {plural(sum(len(of.costs) for of in by_round), 'run')}",
    )


def _reference_lines(references: Sequence[PublishedReference]) -> list[dict[str, Any]]:
    """Draw one line per round: the mean of the reference's runs at each batch, as the checker of MLCommons uses it."""
    by_round: dict[str, list[PublishedReference]] = {}
    for item in references:
        by_round.setdefault(item.round, []).append(item)
    return [{
        "type": "scatter", "mode": "lines+markers", "name": f"reference (RCP), {visible(round_name)}",
        "showlegend": True, "x": [item.global_batch_size for item in points],
        "y": [sum(item.costs) / len(item.costs) for item in points],
        "text": [wrapped(visible(item.name)) for item in points], "line": {"color": "--muted", "width": 1},
        "marker": {"color": "--muted", "symbol": "diamond-open", "size": 8},
        "hovertemplate": "%{text}<br>batch %{x}: mean %{y:.5~g}<extra></extra>",
    } for round_name, found in by_round.items()
        for points in [sorted(found, key=lambda item: item.global_batch_size)]]


def batch_ticks(sizes: Sequence[int]) -> list[int]:
    """Return at most `MOST_TICKS` powers of two between the smallest and the largest batch."""
    low, high = min(sizes), max(sizes)
    powers = [1 << exponent for exponent in range(low.bit_length() - 1, high.bit_length() + 1)
              if low <= 1 << exponent <= high]
    if len(powers) < 2:
        return sorted({low, high})
    return powers[::-(-len(powers) // MOST_TICKS)]


def _middle(known: Sequence[tuple[BatchCost, float]], color: str) -> dict[str, Any]:
    by_batch: dict[int, list[float]] = {}
    for cost, value in known:
        by_batch.setdefault(cost.global_batch_size, []).append(value)
    sizes = sorted(by_batch)
    return {
        "type": "scatter", "mode": "lines", "name": "medians", "showlegend": False, "x": sizes,
        "y": [median(by_batch[size]) for size in sizes], "line": {"color": color, "width": 1.2, "dash": "4px,3px"},
        "hoverinfo": "skip",
    }
