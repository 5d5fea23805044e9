"""Scaling with the number of processes: at the same batch, and with larger batches; measured values with bounds."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from repro.compare import Metric
from repro.core.numbers import significant
from repro.record.folder.store import Record
from repro.suite.metrics import DEFAULT, DEFAULT_OF_A_CONTEST, DEFAULT_WITHOUT_TARGET
from repro.suite.planning.cell import Cell
from repro.tables.tables import Table
from repro.tables.text import trimmed, wrapped
from repro.tables.values import Row, plain

from ..axis import log_ticks
from ..cells import COLORS, DASHES, SYMBOLS, CellMark, marks, origins
from .bounds import CostModel, ScalingLine, ScalingPoint, StepBounds, fits, scaling_line
from .plot import DASHES as PATTERNS
from .plot import Chart, error_bars, layout, log_ticks_of, short

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
    """Return a chart against the number of processes; within one decade plotly.js would label few of its ticks."""
    data = [trace for trace in traces if trace]
    ticks = sorted({point.processes for line in lines for point in line.points})
    drawn = [value for trace in data for value in _extent(trace) if value > 0]
    looks = layout("processes", unit)
    looks["xaxis"] |= log_ticks_of(ticks, str)
    looks["yaxis"] |= log_ticks_of(log_ticks(min(drawn), max(drawn)) if drawn else (), trimmed)
    return Chart(f"scaling-{name}", title, counted, {"data": data, "layout": looks},
                 f"{title} against the number of processes, {counted}; {len(lines)} lines, both axes logarithmic")


def step_traces(line: ScalingLine) -> list[dict[str, Any] | None]:
    every = [(point.processes, 1e3 * value, f"cell {point.mark.number}") for point in line.points
             for value in point.steps]
    trials = {
        "type": "scatter", "mode": "markers", "name": line.label, "legendgroup": f"line-{line.number}", "opacity": 0.35,
        "x": [x for x, _, _ in every], "y": [short(y) for _, y, _ in every], "hoverinfo": "skip",
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
        "y": [short(known) for _, known in points],
        "line": {"color": color, "dash": PATTERNS[dash or line.dash], "width": 1.1 if words else 1.8},
        "hovertemplate": "%{meta[0]}<br>%{x} processes: %{y:,.4~r}<extra></extra>",
    }
    if not words:
        found["marker"] = {"symbol": line.symbol, "size": 7, "color": color}
    if intervals:
        ends = [point.interval or (known, known) for point, known in points]
        found["error_y"] = error_bars([known for _, known in points], ends, color)
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


SPEEDUPS = {DEFAULT: "Speed-up of the time to target", DEFAULT_OF_A_CONTEST: "Speed-up of the time to the end",
            DEFAULT_WITHOUT_TARGET: "Speed-up of the training throughput"}
"""Metric -> title of the chart of speed-ups."""


@dataclass(frozen=True, slots=True)
class ScalingPanel:
    """Charts and table of one batch (same-batch scaling), or of several (larger-batch scaling)."""

    name: str
    title: str
    origins: tuple[str, ...]
    lines: tuple[ScalingLine, ...]
    charts: tuple[Chart, ...]
    baseline: str
    keys: tuple[tuple[str, str], ...]
    """(dash, name) of the drawn bounds."""

    @property
    def rows(self) -> int:
        """Rows of its table."""
        return sum(len(line.points) for line in self.lines)


@dataclass(frozen=True, slots=True)
class ScalingView:
    """The section."""

    same: tuple[ScalingPanel, ...]
    larger: tuple[ScalingPanel, ...]
    models: tuple[str, ...]
    """Descriptions of the fitted cost models, one for each network."""
    emulated: bool
    sleeps: bool
    """Computation is a sleep, which processes do side by side."""

    @property
    def charts(self) -> tuple[Chart, ...]:
        return tuple(chart for panel in (*self.same, *self.larger) for chart in panel.charts)


def scaling_table(record: Record) -> Table:
    """Return one row per cell of a line: steps with their bounds, and speed-ups."""
    view = scaling(record)
    return Table("scaling", "One row per cell of a line against the number of processes", tuple(
        _scaling_row(kind, line, point) for kind, panels in (("same batch", view.same), ("larger batches", view.larger))
        for panel in panels for line in panel.lines for point in line.points))


def _scaling_row(kind: str, line: ScalingLine, point: ScalingPoint) -> Row:
    limits, low_high = point.bounds, point.interval or (None, None)
    return {"kind": kind, "line": plain(line.label), "cell_id": point.mark.cell_id, "origin": point.mark.origin,
            "processes": point.processes, "batch": point.batch, "n": point.n, "step_median_seconds": limits.step,
            "compute_seconds": limits.compute, "wire_seconds": limits.one_after_the_other,
            "longer_seconds": limits.overlapped, "modelled_seconds": limits.modelled, "epoch_seconds": point.epoch,
            "median_to_target": point.tta, "speedup": point.speedup, "speedup_low": low_high[0],
            "speedup_high": low_high[1], "epochs_to_target": point.epochs.value if point.epochs else None,
            "final": point.final.value if point.final else None, "bytes_per_epoch": point.bytes_per_epoch,
            "exposed_seconds_per_epoch": point.exposed_per_epoch,
            "baseline": point.baseline.cell_id if point.baseline else None}


def scaling(record: Record) -> ScalingView:
    """Make all panels; none if the plan does not vary the number of processes, or trains nothing."""
    if record.plan.measures:
        return ScalingView((), (), (), emulated=False, sleeps=False)
    models, known = fits(record), marks(record)
    return ScalingView(
        same=_same_batch(record, known, models), larger=_larger_batch(record, known, models),
        models=tuple(_model_words(model) for model in models.values()),
        emulated=any(cell.choices.origin == "emulated" for cell in record.plan.cells),
        sleeps=all(config.workload.options.get("sleep_ms") for config in record.plan.trainings()),
    )


def _model_words(model: CostModel) -> str:
    rate = f"{significant(8e-6 / model.beta)} Mbit/s" if model.beta else "no cost of bytes"
    return (f"alpha {significant(model.alpha * 1e3)} ms per round, "
            f"beta {significant(model.beta * 1e9)} ns per byte ({rate}), fitted to the busy seconds of {model.cells} "
            f"cells of this run; median error {100 * model.error:.0f}\N{NO-BREAK SPACE}%")


# ---- grouping cells


def _same_batch(record: Record, known: dict[str, CellMark], models: dict[str, CostModel]) -> tuple[ScalingPanel, ...]:
    """Make a panel for each global batch, with one line for each combination of other settings."""
    panels = []
    for batch in sorted({cell.choices.global_batch or 0 for cell in record.plan.cells}):
        cells = [cell for cell in record.plan.cells if (cell.choices.global_batch or 0) == batch]
        lines = filter(_spread, _grouped(cells, ("processes",)))
        drawn = tuple(
            scaling_line(record, known, models, index, line, _single(line)) for index, line in enumerate(lines)
        )
        if drawn:
            panels.append(_same_panel(f"same-{batch}", batch, drawn, record.plan.suite.default_metric))
    return tuple(panels)


def _larger_batch(record: Record, known: dict[str, CellMark], models: dict[str, CostModel]) -> tuple[ScalingPanel, ...]:
    """Make one panel if the global batch varies too: every line is compared with one worker at the smallest batch."""
    lines: list[ScalingLine] = []
    for color, cells in enumerate(_grouped(record.plan.cells, ("processes", "batch"))):
        batches = sorted({cell.choices.global_batch or 0 for cell in cells})
        if len(batches) < 2 or not _spread(cells):
            continue
        single = _single([cell for cell in cells if (cell.choices.global_batch or 0) == batches[0]])
        for place, batch in enumerate(batches):
            of_batch = [cell for cell in cells if (cell.choices.global_batch or 0) == batch]
            line = scaling_line(record, known, models, len(lines), of_batch, single, f"batch {batch}")
            lines.append(replace(line, color=color % COLORS, dash=DASHES[place % len(DASHES)],
                                 symbol=SYMBOLS[place % len(SYMBOLS)]))
    return (_larger_panel(tuple(lines), record.plan.suite.default_metric),) if lines else ()


def _grouped(cells: Sequence[Cell], free: tuple[str, ...]) -> list[list[Cell]]:
    """Group cells that differ only in `free` (`batch`: its global and micro size), in the order of the plan."""
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        data = cell.choices.model_dump(mode="json", by_alias=True)
        batch = data["batch"] or {}
        del data["processes"]
        batch.pop("micro", None)
        if "batch" in free:
            batch.pop("global", None)
        found.setdefault(json.dumps(data, sort_keys=True), []).append(cell)
    return [sorted(group, key=lambda cell: cell.choices.processes) for group in found.values()]


def _spread(cells: Sequence[Cell]) -> bool:
    return len({cell.choices.processes for cell in cells}) > 1


def _single(cells: Sequence[Cell]) -> Cell | None:
    """Return the single worker, the baseline of the others."""
    return next((cell for cell in cells if cell.choices.processes == 1), None)


# ---- panels and charts


def _same_panel(name: str, batch: int, lines: tuple[ScalingLine, ...], metric: Metric) -> ScalingPanel:
    known = origins([point.mark for line in lines for point in line.points])
    drawn = tuple((dash, words) for bound, words, dash in BOUND_LINES
                  if any(bound(point.bounds) is not None and point.processes > 1
                         for line in lines for point in line.points))
    baseline = _named_baseline(lines)
    charts = (
        scaling_chart(
            f"{name}-step", "Seconds per step",
            "median over trials; faint marks: single trials; thin lines: computed bounds, see below",
            [item for line in lines for item in step_traces(line)], lines, "ms per step",
        ),
        scaling_chart(
            f"{name}-epoch", "Seconds per epoch of training", "median over trials, without evaluation",
            [drawn_line(line, lambda point: point.epoch) for line in lines], lines, "s per epoch",
        ),
        *([scaling_chart(
            f"{name}-tta", "Seconds to the target", "median over trials, wall clock, including evaluation",
            [drawn_line(line, lambda point: point.tta) for line in lines], lines, "s to target",
        )] if metric == DEFAULT else []),
        _speedup_chart(name, lines, known, baseline, metric),
    )
    return ScalingPanel(name, f"Same batch: {batch} samples per step at every number of processes", known, lines,
                        tuple(chart for chart in charts if chart.figure["data"]), baseline, drawn)


def _larger_panel(lines: tuple[ScalingLine, ...], metric: Metric) -> ScalingPanel:
    known = origins([point.mark for line in lines for point in line.points])
    baseline = _named_baseline(lines)
    charts = (
        _speedup_chart("larger", lines, known, baseline, metric),
        scaling_chart(
            "larger-bytes", "Bytes that the busiest rank sends per epoch", "counted, median over trials",
            [drawn_line(line, lambda point: (point.bytes_per_epoch or 0) / 1e6) for line in lines], lines,
            "MB per epoch",
        ),
        scaling_chart(
            "larger-exposed", "Exposed communication per epoch",
            "time in which training waited for communication; median over trials",
            [drawn_line(line, lambda point: point.exposed_per_epoch) for line in lines], lines, "s per epoch",
        ),
    )
    return ScalingPanel("larger", "Larger batches, compared with one worker at the smallest batch", known, lines,
                        tuple(chart for chart in charts if chart.figure["data"]), baseline, ())


def _speedup_chart(
    name: str, lines: Sequence[ScalingLine], found: Sequence[str], baseline: str, metric: Metric
) -> Chart:
    traces = [drawn_line(line, lambda point: point.speedup, intervals=True) for line in lines]
    return scaling_chart(
        f"{name}-speedup", SPEEDUPS[metric], f"baseline: {baseline}; paired by seed, 95 % intervals",
        [*traces, *ideal(lines, found)], lines, "times as fast",
    )


def _named_baseline(lines: Sequence[ScalingLine]) -> str:
    """Name the single workers by cell number; each line has its own."""
    found = dict.fromkeys(point.baseline.number for line in lines for point in line.points if point.baseline)
    if not found:
        return "none: this plan has no single worker"
    return f"one worker (cell {', '.join(map(str, found))}{'; each line has its own' if len(found) > 1 else ''})"
