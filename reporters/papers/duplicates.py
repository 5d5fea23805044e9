"""What leaving out near-duplicates left of the training data, and the final quality of what was trained on the rest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from repro.compare.verdict.summary import Summary, summarize
from repro.record.folder.store import Record
from repro.suite.kinds.training import TrainingConfig
from repro.suite.planning.cell import Cell
from repro.tables.tables import Table
from repro.tables.values import plain
from repro.workloads.selected_data import Dedup, Selected

from ..page.cells import CellMark, marks
from ..page.charts.plot import DASHES, Chart, error_bars, layout, short
from ..page.charts.scaling import ScalingView

WAYS = (("near", "near-duplicates left out", "solid", "circle"),
        ("random", "the same number at random", "dash", "square"))
"""(option `leave_out`, words, dash, symbol)."""


def left_out(record: Record) -> Iterator[tuple[Cell, Dedup, Selected]]:
    """Yield the cells in the order of the plan, with the facts of the plan, which its trials have checked."""
    for cell in record.plan.cells:
        if isinstance(cell.choices, TrainingConfig):
            plugin = cell.choices.workload.plugin
            dedup, selected = getattr(plugin, "dedup", None), getattr(plugin, "selected", None)
            if isinstance(dedup, Dedup) and isinstance(selected, Selected):
                yield cell, dedup, selected


@dataclass(frozen=True, slots=True)
class DuplicateRow:
    """One cell whose near-duplicates, or as many others, were left out."""

    mark: CellMark
    dedup: Dedup
    selected: Selected
    summary: Summary
    """Of the final quality."""


@dataclass(frozen=True, slots=True)
class DuplicatesView:
    """The section; without rows if no cell leaves near-duplicates out."""

    rows: tuple[DuplicateRow, ...]
    charts: tuple[Chart, ...]
    planted: bool


def duplicate_table(record: Record) -> Table:
    """Return one row per cell that leaves near-duplicates out."""
    return Table("duplicates", "One row per cell that leaves near-duplicates out of the training data", tuple(
        {"cell_id": cell.cell_id, "cell": plain(cell.label), **dedup.model_dump(), **selected.model_dump(),
         "recall": selected.recall, "precision": selected.precision} for cell, dedup, selected in left_out(record)))


def duplicates(record: Record, _: ScalingView) -> DuplicatesView:
    """Compute the section."""
    known = marks(record)
    rows = tuple(DuplicateRow(known[cell.cell_id], dedup, selected,
                              summarize(cell, record.of_cell(cell.cell_id), "accuracy"))
                 for cell, dedup, selected in left_out(record))
    points = [row for row in rows if row.summary.values]
    return DuplicatesView(rows, (_chart(points),) if points else (), any(row.selected.planted for row in rows))


def _chart(points: list[DuplicateRow]) -> Chart:
    traces = [trace for way in WAYS if (trace := _trace(points, *way))]
    drawn = layout("training images that stay, % of all", "final quality")
    drawn["xaxis"].pop("rangemode")
    return Chart("near-duplicates", "Final quality by how much stays", "median over trials, with its 95 % interval",
                 {"data": traces, "layout": drawn},
                 "Final quality against the share of training images that stay, near-duplicates left out or the "
                 "same number at random")


def _trace(points: list[DuplicateRow], way: str, words: str, dash: str, symbol: str) -> dict[str, Any] | None:
    chosen = sorted((row for row in points if row.dedup.leave_out == way), key=lambda row: row.selected.kept)
    if not chosen:
        return None
    middle = [row.summary.median_final or 0.0 for row in chosen]
    ends = [(row.summary.interval.low, row.summary.interval.high) if row.summary.interval else (value, value)
            for row, value in zip(chosen, middle, strict=True)]
    color = f"--c{0 if way == 'near' else 1}"
    return {
        "type": "scatter", "mode": "lines+markers", "name": words, "meta": [words],
        "x": [short(100 * row.selected.kept / row.selected.samples) for row in chosen],
        "y": [short(value) for value in middle], "text": [f"threshold {row.dedup.threshold}" for row in chosen],
        "line": {"color": color, "dash": DASHES[dash], "width": 1.8},
        "marker": {"symbol": symbol, "size": 7, "color": color},
        "hovertemplate": "%{meta[0]}<br>%{text}: %{x:.3~g} % stay, %{y:,.4~r}<extra></extra>",
        "error_y": error_bars(middle, ends, color),
    }
