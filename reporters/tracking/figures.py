"""The figures of the page as plotly figures for a tracking store: one self-contained file per section.

MLflow logs plotly figures as HTML; these files include plotly.js. By default MLflow loads the script from a content
network, which fails offline and tells others what the user views. MLflow shows an artifact in a frame without an
address, so the script cannot be a separate artifact. Each file has about 5 MB, so the charts of a section share one.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from functools import cache
from typing import Any

from repro.compare import METRICS, Comparison, compare
from repro.record.store import Record

from ..page.axis import around_one, tick_text
from ..page.cells import CellMark, marks
from ..page.curves import Chart, panels
from ..page.document import template
from ..page.scaling import scaling
from ..page.survival import survival
from ..tables.rows import pair_origins
from ..text import plural, significant, wrapped

FOLDER = "figures"
ROWS = 40
"""Most comparisons in the forest plot; the table has all."""
HEIGHT = 340
"""Pixels of one chart; the figure fills the width."""
SANS = "system-ui, 'Segoe UI', Roboto, 'Noto Sans', 'DejaVu Sans', sans-serif"
SAVE: Mapping[str, Any] = {
    "include_plotlyjs": True, "full_html": True, "div_id": "figure", "auto_open": False,
    "config": {"displaylogo": False, "responsive": True, "showSendToCloud": False, "plotlyServerURL": ""},
}
"""Settings for the same bytes every time, with nothing from outside."""


def figures(record: Record) -> dict[str, dict[str, Any]]:
    """Return artifact path -> plotly figure in plain data; none before all trials have run."""
    if record.missing() or not record.results:
        return {}
    names = {str(mark.number): f"{mark.number} {wrapped(mark.label, 60)}" for mark in marks(record).values()}
    found: dict[str, dict[str, Any]] = {}
    for index, panel in enumerate(panels(record), 1):
        title = f"{wrapped(panel.metric)} on {wrapped(panel.workload)}, one line per trial {_origins(panel.origins)}"
        found[f"{panel.noun}{f'-{index}' if index > 1 else ''}"] = _sheet(title, panel.charts, names)
    found["speedups"] = _forest(record)
    found["reached"] = _sheet("Probability of having reached the target", survival(record).charts, names)
    by_processes = scaling(record)
    for part in (*by_processes.same, *by_processes.larger):
        found[f"scaling-{part.name}"] = _sheet(f"{wrapped(part.title, 80)} {_origins(part.origins)}", part.charts, {})
    colors = palette()
    return {f"{FOLDER}/{name}.html": _resolved(figure, "", colors) for name, figure in found.items() if figure["data"]}


def digest(figure: Mapping[str, Any]) -> str:
    """Return a digest that changes when the file of the figure would, without rendering megabytes."""
    from plotly import __version__

    text = json.dumps([figure, SAVE, __version__], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def log(client: Any, run_id: str, path: str, figure: Mapping[str, Any]) -> None:
    """Log one of `figures` to a run as a plotly figure."""
    from plotly.graph_objects import Figure

    # plotly changes the settings that it is given; the digest depends on them.
    client.log_figure(run_id, Figure(figure), path, save_kwargs=deepcopy(dict(SAVE)))


@cache
def palette() -> dict[str, str]:
    """Return the light colours of the page by name."""
    light = template("report.css").partition("}")[0]
    return dict(re.findall(r"(--[\w-]+): (#[0-9a-f]{3,8})", light))


def color_of(mark: CellMark) -> str:
    """Return the colour of a cell on the page."""
    return palette()[f"--c{mark.color}"]


def _origins(found: Iterable[str]) -> str:
    """`[measured and emulated]`."""
    return f"[{' and '.join(found)}]"


def _sheet(title: str, charts: Sequence[Chart], names: Mapping[str, str]) -> dict[str, Any]:
    """Put several charts into one figure, two in a row, with one legend.

    Args:
        names: legend group -> its name; default: the name of its first trace.
    """
    columns, rows = min(2, len(charts)), -(-len(charts) // 2)
    data: list[dict[str, Any]] = []
    layout = _frame(title, rows)
    shown: set[str] = set()
    for index, chart in enumerate(charts):
        number = "" if index == 0 else str(index + 1)
        across, down = _domain(index % columns, columns, 0.09), _domain(rows - 1 - index // columns, rows, 0.22 / rows)
        source = chart.figure["layout"]
        layout[f"xaxis{number}"] = source["xaxis"] | {"domain": across, "anchor": f"y{number}"}
        layout[f"yaxis{number}"] = source["yaxis"] | {"domain": down, "anchor": f"x{number}"}
        layout["annotations"] += [_heading(chart, across[0], down[1]), *(_moved(item, number) for item in
                                                                         source.get("annotations", ()))]
        layout["shapes"] += [_moved(item, number) for item in source.get("shapes", ())]
        data += [_placed(trace, number, names, shown) for trace in chart.figure["data"]]
    return {"data": data, "layout": layout}


def _frame(title: str, rows: int) -> dict[str, Any]:
    return {
        "title": {"text": title, "x": 0, "xref": "paper", "font": {"size": 16}}, "height": 130 + HEIGHT * max(1, rows),
        "font": {"size": 12, "color": "--ink", "family": SANS}, "paper_bgcolor": "--surface",
        "plot_bgcolor": "--surface", "hovermode": "closest", "shapes": [], "annotations": [],
        "margin": {"l": 64, "r": 24, "t": 84, "b": 60}, "showlegend": True,
        "legend": {"orientation": "h", "x": 0, "xanchor": "left", "yref": "container", "y": 0, "yanchor": "bottom"},
        "hoverlabel": {"align": "left", "bgcolor": "--raised", "bordercolor": "--rule", "font": {"color": "--ink"}},
    }


def _domain(place: int, count: int, gap: float) -> list[float]:
    width = (1 - gap * (count - 1)) / count
    return [round(place * (width + gap), 4), round(place * (width + gap) + width, 4)]


def _heading(chart: Chart, left: float, top: float) -> dict[str, Any]:
    return {"text": f"<b>{wrapped(chart.title, 60)}</b>", "xref": "paper", "yref": "paper", "x": left, "y": top,
            "xanchor": "left", "yanchor": "bottom", "yshift": 6, "showarrow": False, "font": {"size": 13}}


def _moved(item: Mapping[str, Any], number: str) -> dict[str, Any]:
    """Move a shape or note from the axes of the figure to those of its chart."""
    return {**item, "xref": f"x{number} domain", "yref": f"y{number}"}


def _placed(trace: Mapping[str, Any], number: str, names: Mapping[str, str], shown: set[str]) -> dict[str, Any]:
    group = str(trace.get("legendgroup", trace.get("name", "")))
    behind = trace.get("showlegend") is False or trace.get("mode") == "markers"
    first = group not in shown and not behind
    if first:
        shown.add(group)
    own = {key: value for key, value in trace.items() if key != "uid"}  # ids are unique in one chart only
    name = names.get(group) or wrapped(str(trace.get("name", "")), 60)
    return own | {"xaxis": f"x{number}", "yaxis": f"y{number}", "legendgroup": group, "showlegend": first, "name": name}


def _forest(record: Record) -> dict[str, Any]:
    """Draw the ratios with intervals and pairs, the declared contrast on top."""
    every = compare(record.plan, record.results, started_ms=record.started_ms)
    known = [item for item in every if item.ratio is not None and item.ratio > 0]
    if not known:
        return {"data": [], "layout": {}}
    known.sort(key=lambda item: not item.primary)
    drawn, numbers = known[:ROWS], marks(record)
    scale = METRICS[drawn[0].metric]
    data = [trace for place, item in enumerate(drawn) for trace in _row(place, item, numbers[item.candidate])]
    origins = _origins(dict.fromkeys(word for item in drawn for word in pair_origins(record, item)))
    axis = around_one([end for item in drawn for end in _extent(item)])
    left = len(every) - len(drawn)
    without = f"; {plural(left, 'comparison')} not drawn" if left else ""
    title = f"Ratio of {scale.noun}, candidate / baseline {origins}{without}"
    layout = _frame(title, 0) | {
        "height": 170 + 58 * len(drawn), "showlegend": False, "margin": {"l": 24, "r": 150, "t": 84, "b": 60},
        "xaxis": {"type": "log", "title": {"text": f"ratio; below 1 the candidate is {scale.below}, above "
                                                   f"{scale.above}; {_level(drawn)}"},
                  "gridcolor": "--rule", "tickvals": list(axis.values), "automargin": True, "ticks": "outside",
                  "ticktext": [tick_text(value) for value in axis.values],
                  "range": [math.log10(axis.low), math.log10(axis.high)]},
        "yaxis": {"tickvals": list(range(len(drawn))), "ticktext": [_contrast(item, numbers) for item in drawn],
                  "range": [len(drawn) - 0.4, -0.6], "automargin": True, "gridcolor": "--rule", "zeroline": False},
        "annotations": [_verdict(place, item) for place, item in enumerate(drawn)],
        "shapes": [{"type": "line", "xref": "x", "x0": 1, "x1": 1, "yref": "paper", "y0": 0, "y1": 1,
                    "line": {"color": "--ink", "width": 1.2, "dash": "dash"}}],
    }
    return {"data": data, "layout": layout}


def _extent(item: Comparison) -> list[float]:
    pairs = [pair.candidate / pair.baseline for pair in item.pairs if pair.baseline > 0 and pair.candidate > 0]
    return [item.ratio or 1.0, *pairs, *((item.interval.low, item.interval.high) if item.interval else ())]


def _level(drawn: Sequence[Comparison]) -> str:
    level = next((item.interval.level for item in drawn if item.interval), None)
    return f"bars: {level:.0%} intervals, points: pairs with one seed" if level else "points: pairs with one seed"


def _contrast(item: Comparison, numbers: Mapping[str, CellMark]) -> str:
    candidate, baseline = numbers[item.candidate], numbers[item.baseline]
    label = (f"{candidate.number} {wrapped(candidate.brief, 60)}<br>"
            f"against {baseline.number} {wrapped(baseline.brief, 60)}")
    return f"<b>{label}</b>" if item.primary else label


def _verdict(place: int, item: Comparison) -> dict[str, Any]:
    declared = ", declared" if item.primary else ""
    return {"text": f"{significant(item.ratio or 0.0)} {item.verdict}{declared}", "xref": "paper", "x": 1.01,
            "y": place, "yref": "y", "xanchor": "left", "showarrow": False, "font": {"size": 12}}


def _row(place: int, item: Comparison, mark: CellMark) -> list[dict[str, Any]]:
    color, ratio = f"--c{mark.color}", item.ratio or 0.0
    pairs = [(pair.candidate / pair.baseline, pair.repeat) for pair in item.pairs
             if pair.baseline > 0 and pair.candidate > 0]
    points = {
        "type": "scatter", "mode": "markers", "name": "pairs", "x": [round(value, 6) for value, _ in pairs],
        "y": [place + 0.22] * len(pairs), "customdata": [repeat for _, repeat in pairs], "opacity": 0.55,
        "marker": {"size": 6, "color": color}, "hovertemplate": "seed %{customdata}: %{x:.4~g}<extra></extra>",
    }
    whole: dict[str, Any] = {
        "type": "scatter", "mode": "markers", "name": "ratio", "x": [ratio], "y": [place],
        "marker": {"size": 11, "symbol": "diamond" if item.primary else "square", "color": color},
        "meta": [wrapped(item.because, 70)], "hovertemplate": "%{x:.4~g}<br>%{meta[0]}<extra></extra>",
    }
    if item.interval:
        whole["error_x"] = {"type": "data", "symmetric": False, "color": color, "thickness": 2, "width": 6,
                            "array": [item.interval.high - ratio], "arrayminus": [ratio - item.interval.low]}
    return [points, whole]


def _resolved(value: Any, key: str, colors: Mapping[str, str]) -> Any:
    """Replace names of colours, as the script of the page does."""
    if isinstance(value, Mapping):
        return {name: _resolved(item, name, colors) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_resolved(item, key, colors) for item in value]
    named = isinstance(value, str) and value.startswith("--") and key.endswith("color")
    return colors[value] if named else value
