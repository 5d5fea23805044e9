"""Rows of measurements: figures and checks of every cell, and the checks of every trial."""

from __future__ import annotations

from collections.abc import Iterable

from repro.compare.operation_figures import cell_checks, cell_measures
from repro.record.folder.store import Record
from repro.tables.values import Row, bounds, plain


def measure_rows(record: Record) -> Iterable[Row]:
    """Yield a row for every figure of every cell; none for other kinds of trial."""
    for cell in record.plan.cells:
        for item in cell_measures(record.of_cell(cell.cell_id)):
            origin = "modelled" if item.label == "modelled" else cell.choices.origin
            row: Row = {"cell_id": cell.cell_id, "cell": plain(cell.label), "origin": origin,
                        "figure": plain(item.name), "title": plain(item.title), "unit": plain(item.unit),
                        "label": item.label, "n": item.n, "median": item.median}
            yield row | bounds("median", item.interval)


def check_rows(record: Record) -> Iterable[Row]:
    """Yield a row for every check of every cell."""
    for cell in record.plan.cells:
        for item in cell_checks(record.of_cell(cell.cell_id)):
            yield {"cell_id": cell.cell_id, "cell": plain(cell.label), "origin": cell.choices.origin,
                   "check": plain(item.name), "n": item.n, "passed": item.passed, "worst_error": item.worst,
                   "limit": item.limit}
