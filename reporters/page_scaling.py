"""Scaling with the number of processes: same batch and larger batch apart, bounds beside what was measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from repro.compare import Comparison, contrast, summarize
from repro.plan import Cell
from repro.results import Result
from repro.seams import Workload
from repro.store import Record

from .page_bounds import Bounds, Model, bounds, ended, fits, network_of
from .page_cells import COLORS, DASHES, SYMBOLS, CellMark, marks, origins
from .page_curves import DASHES as PATTERNS
from .page_curves import Chart
from .page_text import Number, number, ratios, seconds, shortened, significant, without_paths, wrapped
from .page_traffic import counted, kibibytes, milliseconds

BOUND_LINES = (
    ("compute", "compute alone", "dot"),
    ("one_after_the_other", "compute + bytes over the link's rate", "dash"),
    ("modelled", "compute + fitted cost model", "dashdot"),
)
"""(field of Bounds, words, dash)."""


@dataclass(frozen=True, slots=True)
class Line:
    """Cells that differ in their number of processes only; its looks are a cell mark's."""

    number: int
    label: str
    color: int
    dash: str
    symbol: str
    points: tuple[ScalingPoint, ...]

    @property
    def brief(self) -> str:
        """The label, its middle left out where it is long."""
        return shortened(self.label)


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """One cell of a line: raw figures for the charts, texts for the table."""

    mark: CellMark
    processes: int
    batch: int
    n: int
    bounds: Bounds
    steps: tuple[float, ...]
    """Of every trial."""
    epoch: float | None
    tta: float | None
    speedup: float | None
    interval: tuple[float, float] | None
    because: str
    baseline: CellMark | None
    epochs: Number | None
    final: Number | None
    bytes_per_epoch: float | None
    exposed_per_epoch: float | None

    @property
    def texts(self) -> dict[str, object]:
        """The table's cells."""
        found = ratios([self.speedup, *(self.interval or ())]) if self.speedup else []
        bound = self.bounds
        return {
            "step": _ms(bound.step), "compute": _ms(bound.compute), "wire": _ms(bound.one_after_the_other),
            "overlapped": _ms(bound.overlapped), "modelled": _ms(bound.modelled), "epoch": seconds(self.epoch),
            "tta": seconds(self.tta), "speedup": found[0] if found else None,
            "interval": f"{found[1]} to {found[2]}" if len(found) == 3 else "",
            "bytes": kibibytes(self.bytes_per_epoch) if self.bytes_per_epoch is not None else None,
            "exposed": seconds(self.exposed_per_epoch),
        }


@dataclass(frozen=True, slots=True)
class ScalingPanel:
    """Charts and table of one batch (same-batch scaling), or of several (larger-batch scaling)."""

    name: str
    title: str
    origin: str
    lines: tuple[Line, ...]
    charts: tuple[Chart, ...]
    baseline: str
    keys: tuple[tuple[str, str], ...]
    """(dash, words) of the bounds that are drawn."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """The section."""

    same: tuple[ScalingPanel, ...]
    larger: tuple[ScalingPanel, ...]
    models: tuple[str, ...]
    """The fitted cost models in words, one a network."""
    emulated: bool

    @property
    def charts(self) -> tuple[Chart, ...]:
        return tuple(chart for panel in (*self.same, *self.larger) for chart in panel.charts)


def scaling(record: Record) -> Scaling:
    """All panels; none where the plan does not vary the number of processes."""
    models, known = fits(record), marks(record)
    return Scaling(
        same=_same_batch(record, known, models), larger=_larger_batch(record, known, models),
        models=tuple(_model_words(model) for model in models.values()),
        emulated=any(mark.origin == "emulated" for mark in known.values()),
    )


def _model_words(model: Model) -> str:
    rate = f"{significant(8e-6 / model.beta)} Mbit/s" if model.beta else "no cost of bytes"
    return (f"alpha {significant(model.alpha * 1e3)} ms a round, "
            f"beta {significant(model.beta * 1e9)} ns a byte ({rate}), fitted to the busy seconds of {model.cells} "
            f"cells of this run; median error {model.error:.0%}")


# ---- which cells belong together


def _same_batch(record: Record, known: dict[str, CellMark], models: dict[str, Model]) -> tuple[ScalingPanel, ...]:
    """A panel for every global batch; in it a line for everything else that varies."""
    panels = []
    for batch in sorted({cell.choices.batch.global_ for cell in record.plan.cells}):
        cells = [cell for cell in record.plan.cells if cell.choices.batch.global_ == batch]
        lines = [line for line in _grouped(cells, ("processes",)) if _spread(line)]
        drawn = tuple(
            _line(record, known, models, index, line, _single(line)) for index, line in enumerate(lines)
        )
        if drawn:
            panels.append(_same_panel(f"same-{batch}", batch, drawn))
    return tuple(panels)


def _larger_batch(record: Record, known: dict[str, CellMark], models: dict[str, Model]) -> tuple[ScalingPanel, ...]:
    """One panel, where the global batch varies as well: every line against one worker at the smallest batch."""
    lines: list[Line] = []
    for color, cells in enumerate(_grouped(record.plan.cells, ("processes", "batch"))):
        batches = sorted({cell.choices.batch.global_ for cell in cells})
        if len(batches) < 2 or not _spread(cells):
            continue
        single = _single([cell for cell in cells if cell.choices.batch.global_ == batches[0]])
        for place, batch in enumerate(batches):
            of_batch = [cell for cell in cells if cell.choices.batch.global_ == batch]
            line = _line(record, known, models, len(lines), of_batch, single, f"batch {batch}")
            lines.append(Line(line.number, line.label, color % COLORS, DASHES[place % len(DASHES)],
                              SYMBOLS[place % len(SYMBOLS)], line.points))
    return (_larger_panel(tuple(lines)),) if lines else ()


def _grouped(cells: Sequence[Cell], free: tuple[str, ...]) -> list[list[Cell]]:
    """Cells that agree in all but `free` (`batch`: its global and micro size), in the order of the plan."""
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        data = cell.choices.model_dump(mode="json", by_alias=True)
        del data["processes"], data["batch"]["micro"]
        if "batch" in free:
            del data["batch"]["global"]
        found.setdefault(json.dumps(data, sort_keys=True), []).append(cell)
    return [sorted(group, key=lambda cell: cell.choices.processes) for group in found.values()]


def _spread(cells: Sequence[Cell]) -> bool:
    return len({cell.choices.processes for cell in cells}) > 1


def _single(cells: Sequence[Cell]) -> Cell | None:
    """The single worker that the others are measured against."""
    return next((cell for cell in cells if cell.choices.processes == 1), None)


def _label(cell: Cell, more: str = "") -> str:
    """What the cells of a line have in common and other lines have not."""
    parts = [value if key in ("engine", "workload", "precision", "comm", "optimizer", "launcher")
             else f"{key.split('.')[-1].replace('_', ' ')} {value}"
             for key, value in cell.factors.items() if key not in ("processes", "batch.global")]
    return without_paths(", ".join([*parts, *([more] if more else [])]) or cell.choices.engine.label)


# ---- a line and its points


def _line(
    record: Record, known: dict[str, CellMark], models: dict[str, Model], index: int, cells: Sequence[Cell],
    single: Cell | None, more: str = "",
) -> Line:
    return Line(
        number=index + 1, label=_label(cells[0], more), color=index % COLORS, dash=DASHES[0],
        symbol=SYMBOLS[index % len(SYMBOLS)],
        points=tuple(_point(record, known, models, cell, single) for cell in cells),
    )


def _point(
    record: Record, known: dict[str, CellMark], models: dict[str, Model], cell: Cell, single: Cell | None
) -> ScalingPoint:
    results = record.of_cell(cell.cell_id)
    items, choices = ended(results), cell.choices
    train = choices.workload.get(Workload).train_samples
    steps = train / choices.batch.global_
    moves = [(moved, count) for _, moved, count in counted(items)] if choices.processes > 1 else []
    against = _against(record, cell, single)
    summary = summarize(cell, results)
    speedup = against.speedup if against else None
    if single is not None and cell.cell_id == single.cell_id and summary.median is not None:
        speedup = 1.0
    ends = against.interval if against and against.ratio else None
    return ScalingPoint(
        mark=known[cell.cell_id], processes=choices.processes, batch=choices.batch.global_, n=len(items),
        bounds=bounds(results, choices.processes, models.get(network_of(cell))),
        steps=tuple(item.steps.median_seconds for item in items if item.steps),
        epoch=_median([_epoch(item, train) for item in items]), tta=summary.median, speedup=speedup,
        interval=(1 / ends.high, 1 / ends.low) if ends else None,
        because=against.because if against and not against.ratio else "",
        baseline=known[single.cell_id] if single else None, epochs=number(summary.median_epochs),
        final=number(summary.median_final, 4),
        bytes_per_epoch=_median([steps * moved.busiest_sent_bytes / count for moved, count in moves]),
        exposed_per_epoch=_median([steps * moved.steps.exposed_seconds / count for moved, count in moves]),
    )


def _epoch(item: Result, train: int) -> float | None:
    """Training seconds of one pass over the training samples, evaluation left out."""
    return item.phases["train"] * train / item.samples if item.samples and item.phases.get("train") else None


def _against(record: Record, cell: Cell, single: Cell | None) -> Comparison | None:
    if single is None or cell.cell_id == single.cell_id:
        return None
    return contrast(cell, single, record.of_cell(cell.cell_id), record.of_cell(single.cell_id), "tta_wall",
                    primary=False, planned=record.plan.suite.seeds)


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _ms(value: float | None) -> Number | None:
    return None if value is None else milliseconds(value)


# ---- panels and charts


def _same_panel(name: str, batch: int, lines: tuple[Line, ...]) -> ScalingPanel:
    known = origins([point.mark for line in lines for point in line.points])
    drawn = tuple((dash, words) for field, words, dash in BOUND_LINES
                  if any(getattr(point.bounds, field) is not None and point.processes > 1
                         for line in lines for point in line.points))
    baseline = _named_baseline(lines)
    charts = (
        _chart(f"{name}-step", "Seconds a step",
               "median over trials, every trial a faint mark; thin lines are reckoned, see below",
               [trace for line in lines for trace in _step_traces(line)], lines, "ms a step"),
        _chart(f"{name}-epoch", "Seconds an epoch of training", "median over trials, evaluation left out",
               [_trace(line, lambda point: point.epoch) for line in lines], lines, "s an epoch"),
        _chart(f"{name}-tta", "Seconds to the target", "median over trials, wall clock, evaluation included",
               [_trace(line, lambda point: point.tta) for line in lines], lines, "s to target"),
        _speedup_chart(name, lines, known, baseline),
    )
    return ScalingPanel(name, f"Same batch: {batch} samples a step, however many processes", known, lines,
                        tuple(chart for chart in charts if chart.figure["data"]), baseline, drawn)


def _larger_panel(lines: tuple[Line, ...]) -> ScalingPanel:
    known = origins([point.mark for line in lines for point in line.points])
    baseline = _named_baseline(lines)
    charts = (
        _speedup_chart("larger", lines, known, baseline),
        _chart("larger-bytes", "Bytes that the busiest rank sends an epoch", "counted, median over trials",
               [_trace(line, lambda point: (point.bytes_per_epoch or 0) / 1e6) for line in lines], lines,
               "MB an epoch"),
        _chart("larger-exposed", "Exposed communication an epoch", "training stood still for it; median over trials",
               [_trace(line, lambda point: point.exposed_per_epoch) for line in lines], lines, "s an epoch"),
    )
    return ScalingPanel("larger", "Larger batches, all against one worker at the smallest batch", known, lines,
                        tuple(chart for chart in charts if chart.figure["data"]), baseline, ())


def _speedup_chart(name: str, lines: Sequence[Line], origin: str, baseline: str) -> Chart:
    traces = [_trace(line, lambda point: point.speedup, intervals=True) for line in lines]
    return _chart(f"{name}-speedup", "Speed-up of the time to target",
                  f"against {baseline}, paired by seed, 95 % intervals", [*traces, *_ideal(lines, origin)], lines,
                  "times as fast")


def _named_baseline(lines: Sequence[Line]) -> str:
    """The single workers, by number: every line against its own."""
    found = dict.fromkeys(point.baseline.number for line in lines for point in line.points if point.baseline)
    if not found:
        return "no single worker: this plan has none"
    return f"one worker (cell {', '.join(map(str, found))}{'; each line its own' if len(found) > 1 else ''})"


def _chart(
    name: str, title: str, counted: str, traces: Sequence[dict[str, Any] | None], lines: Sequence[Line], unit: str
) -> Chart:
    data = [trace for trace in traces if trace]
    ticks = sorted({point.processes for line in lines for point in line.points})
    drawn = [value for trace in data for value in trace["y"] if value is not None and value > 0]
    wide = bool(drawn) and max(drawn) > 12 * min(drawn)
    return Chart(f"scaling-{name}", title, counted, {"data": data, "layout": _layout(unit, ticks, wide)},
                 f"{title} against the number of processes, {counted}; {len(lines)} lines, both axes logarithmic")


def _step_traces(line: Line) -> list[dict[str, Any] | None]:
    every = [(point.processes, 1e3 * value, f"cell {point.mark.number}") for point in line.points
             for value in point.steps]
    trials = {
        "type": "scatter", "mode": "markers", "name": line.label, "legendgroup": f"line-{line.number}", "opacity": 0.35,
        "x": [x for x, _, _ in every], "y": [_short(y) for _, y, _ in every], "hoverinfo": "skip",
        "marker": {"symbol": line.symbol, "size": 5, "color": f"--c{line.color}"},
    }
    found: list[dict[str, Any] | None] = [trials if every else None]
    for field, words, dash in BOUND_LINES:
        def value(point: ScalingPoint, field: str = field) -> float | None:
            known = getattr(point.bounds, field)
            return None if known is None else 1e3 * known

        if any(value(point) is not None and point.processes > 1 for point in line.points):
            found.append(_trace(line, value, words=words, dash=dash))
    return [*found, _trace(line, lambda point: None if point.bounds.step is None else 1e3 * point.bounds.step)]


def _trace(
    line: Line, value: Callable[[ScalingPoint], float | None], words: str = "", dash: str = "", intervals: bool = False
) -> dict[str, Any] | None:
    """One line of a chart; None where nothing of it is known."""
    # A logarithmic axis has no place for 0.
    points = [(point, known) for point in line.points if (known := value(point)) is not None and known > 0]
    if not points:
        return None
    color = f"--c{line.color}"
    told = f"{wrapped(line.label)}{f'<br>{words}' if words else ''}"
    trace: dict[str, Any] = {
        "type": "scatter", "mode": "lines" if words else "lines+markers", "name": line.label, "meta": [told],
        "legendgroup": f"line-{line.number}", "x": [point.processes for point, _ in points],
        "y": [_short(known) for _, known in points],
        "line": {"color": color, "dash": PATTERNS[dash or line.dash], "width": 1.1 if words else 1.8},
        "hovertemplate": "%{meta[0]}<br>%{x} processes: %{y:.4~g}<extra></extra>",
    }
    if not words:
        trace["marker"] = {"symbol": line.symbol, "size": 7, "color": color}
    if intervals:
        ends = [point.interval or (known, known) for point, known in points]
        trace["error_y"] = {
            "type": "data", "symmetric": False, "thickness": 1, "width": 3, "color": color,
            "array": [_short(high - known) for (_, known), (_, high) in zip(points, ends, strict=True)],
            "arrayminus": [_short(known - low) for (_, known), (low, _) in zip(points, ends, strict=True)],
        }
    return trace


def _ideal(lines: Sequence[Line], origin: str) -> list[dict[str, Any]]:
    """p times as fast; not where several ranks share this machine's cores by design."""
    ticks = sorted({point.processes for line in lines for point in line.points})
    if origin != "measured" or not any(point.speedup for line in lines for point in line.points):
        return []
    return [{
        "type": "scatter", "mode": "lines", "name": "p times as fast", "x": ticks, "y": ticks, "legendgroup": "ideal",
        "line": {"color": "--ink", "dash": PATTERNS["longdash"], "width": 1.1},
        "hovertemplate": "p processes, p times as fast: %{y}<extra></extra>",
    }]


def _short(value: float) -> float:
    return float(f"{value:.7g}")


def _layout(unit: str, ticks: Sequence[int], wide: bool) -> dict[str, Any]:
    """`wide`: the values span more than a factor of 12, too many for a label at every digit."""
    grid = {"gridcolor": "--rule", "linecolor": "--rule", "zeroline": False, "automargin": True, "ticks": "outside",
            "tickcolor": "--rule", "ticklen": 4, "type": "log"}
    return {
        "autosize": True, "showlegend": False, "hovermode": "closest", "font": {"size": 13, "color": "--ink"},
        "margin": {"l": 60, "r": 14, "t": 26, "b": 50}, "paper_bgcolor": "--surface", "plot_bgcolor": "--surface",
        "hoverlabel": {"align": "left", "bgcolor": "--raised", "bordercolor": "--rule", "font": {"color": "--ink"}},
        "modebar": {"bgcolor": "--surface", "color": "--muted", "activecolor": "--ink"},
        "xaxis": {**grid, "title": {"text": "processes", "standoff": 8}, "tickvals": list(ticks),
                  "ticktext": [str(tick) for tick in ticks]},
        "yaxis": {**grid, "title": {"text": unit, "standoff": 8}, "tickformat": "~r", "dtick": "D2" if wide else "D1"},
    }
