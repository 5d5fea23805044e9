"""Control plane: bytes and messages through the controller, next to those between workers, by cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from repro.record.folder.store import Record
from repro.record.result.results import Result
from repro.suite.planning.cell import Cell
from repro.tables.tables import Table
from repro.tables.text import Number
from repro.tables.values import Row, plain

from ..page.cells import CellMark, marks
from ..page.charts.bounds import ScalingLine, ScalingPoint
from ..page.charts.plot import Chart
from ..page.charts.scaling import ScalingView, drawn_line, scaling_chart
from ..page.document import kibibytes
from ..page.traffic import shown_median as _median


@dataclass(frozen=True, slots=True)
class ControllerRow:
    """One cell: medians over its trials."""

    mark: CellMark
    n: int
    ranks: int
    startup_messages: Number | None
    """Of one rank, as is the next."""
    startup_bytes: Number | None
    startup_total: Number | None
    """Of all ranks."""
    training_messages: Number | None
    """Of all ranks over all steps, as is the next."""
    training_bytes: Number | None
    control_frames: Number | None
    log_bytes: Number | None
    """Of one step."""
    worker_bytes: Number | None
    """Sent by all ranks in one step, as the meter counted them."""
    busiest_bytes: Number | None
    """Sent and received by the busiest rank in one step."""
    data_bytes: Number | None
    """Frames of all nodes' links in one step, each counted where it is sent."""


@dataclass(frozen=True, slots=True)
class ControllerView:
    """The section."""

    rows: tuple[ControllerRow, ...]
    lines: tuple[ScalingLine, ...]
    charts: tuple[Chart, ...]
    has_network: bool


def controller(record: Record, scaling: ScalingView) -> ControllerView:
    """Compute the section; without rows if no trial counted its controller's traffic."""
    rows = _rows(record)
    lines = tuple(line for panel in scaling.same for line in panel.lines)
    return ControllerView(rows, lines, _charts(record, lines) if rows and lines else (),
                          any(row.control_frames is not None for row in rows))


def controller_table(record: Record) -> Table:
    """Return one row per cell whose trials counted the traffic of their controller."""
    rows: list[Row] = []
    for row in _rows(record):
        figures = {"startup_messages": row.startup_messages, "startup_bytes": row.startup_bytes,
                   "startup_total_bytes": row.startup_total, "training_messages": row.training_messages,
                   "training_bytes": row.training_bytes, "control_frames_bytes": row.control_frames,
                   "log_bytes": row.log_bytes, "worker_bytes": row.worker_bytes,
                   "busiest_rank_bytes": row.busiest_bytes, "data_bytes": row.data_bytes}
        rows.append({"cell_id": row.mark.cell_id, "cell": plain(row.mark.label), "origin": row.mark.origin, "n": row.n,
                     "ranks": row.ranks, **{name: item.value if item else None for name, item in figures.items()}})
    return Table("controller", "One row per cell: its control plane, medians over trials", tuple(rows))


def _rows(record: Record) -> tuple[ControllerRow, ...]:
    known = marks(record)
    return tuple(_row(known[cell.cell_id], cell, found) for cell in record.plan.cells
                 if (found := [item for item in record.of_cell(cell.cell_id) if item.controller]))


def _row(mark: CellMark, cell: Cell, results: Sequence[Result]) -> ControllerRow:
    found = [item.controller for item in results if item.controller]
    steps = [(item, count) for item in results if (count := _steps(cell, item))]
    return ControllerRow(
        mark=mark, n=len(found), ranks=cell.choices.processes,
        startup_messages=_median([item.startup.messages / item.ranks for item in found]),
        startup_bytes=_median([item.startup.bytes / item.ranks for item in found], kibibytes),
        startup_total=_median([item.startup.bytes for item in found], kibibytes),
        training_messages=_median([item.training.messages for item in found]),
        training_bytes=_median([item.training.bytes for item in found]),
        control_frames=_median([item.control_frames.bytes for item in found if item.control_frames]),
        log_bytes=_median([item.controller.log_training_bytes / count for item, count in steps if item.controller]),
        worker_bytes=_median([item.bytes_sent / count for item, count in steps if item.bytes_sent], kibibytes),
        busiest_bytes=_median([item.busiest_bytes / count for item, count in steps if item.busiest_bytes], kibibytes),
        data_bytes=_median([item.controller.data_frames.sent_bytes / count for item, count in steps
                            if item.controller and item.controller.data_frames], kibibytes),
    )


def _steps(cell: Cell, result: Result) -> float:
    """Return the optimizer steps of a trial, warm-up included, over which its bytes were counted."""
    return (result.samples or 0) / (cell.choices.global_batch or 1)


def _charts(record: Record, lines: Sequence[ScalingLine]) -> tuple[Chart, ...]:
    cells = {mark.number: record.cell(cell_id) for cell_id, mark in marks(record).items()}

    def median_of(read: Callable[[Cell, Result], float | None]) -> Callable[[ScalingPoint], float | None]:
        def value(point: ScalingPoint) -> float | None:
            cell = cells[point.mark.number]
            values = [known for item in record.of_cell(cell.cell_id) if (known := read(cell, item)) is not None]
            return median(values) if values else None

        return value

    def busiest(cell: Cell, item: Result) -> float | None:
        return item.busiest_bytes / steps if item.busiest_bytes and (steps := _steps(cell, item)) else None

    return (
        scaling_chart(
            "controller", "Through the controller", "all ranks, start-up and training, median over trials",
            [drawn_line(line, median_of(lambda _, item: item.controller_bytes)) for line in lines], lines,
            "bytes per trial"),
        scaling_chart(
            "busiest", "Through the busiest rank", "sent and received, median over trials",
            [drawn_line(line, median_of(busiest)) for line in lines], lines, "bytes per step"),
    )
