"""Figures and checks of measurements as tables for papers."""

from __future__ import annotations

from collections.abc import Sequence

from repro.compare.operation_figures import cell_checks, cell_measures
from repro.record.folder.store import Record
from repro.suite.planning.cell import Cell
from repro.tables.layout import TextTable, interval, name, rounded


def operations_table(record: Record, cells: Sequence[Cell]) -> TextTable:
    """Return the medians of every cell with n and interval; no row for other kinds of trial."""
    return TextTable(
        title="Operations: medians over trials, not tested",
        headers=("Cell", "Figure", "Figures", "n", "Median", "Interval"),
        numeric=(False, False, False, True, True, True),
        rows=tuple((name(cell.label), name(f"{item.title} ({item.unit})" if item.unit else item.title),
                    item.label if item.label != "measured" else cell.choices.origin, str(item.n), rounded(item.median),
                    interval(item.interval))
                   for cell in cells for item in cell_measures(record.of_cell(cell.cell_id))),
    )


def checks_table(record: Record, cells: Sequence[Cell]) -> TextTable:
    """Return the worst error of every check of every cell."""
    return TextTable(
        title="Checks of the answers", headers=("Cell", "Check", "Passed", "Largest error", "Limit"),
        numeric=(False, False, True, True, True),
        rows=tuple((name(cell.label), name(item.name), f"{item.passed}/{item.n}",
                    rounded(item.worst) if item.worst is not None else "not finite", rounded(item.limit))
                   for cell in cells for item in cell_checks(record.of_cell(cell.cell_id))),
    )
