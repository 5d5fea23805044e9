"""Measurements as rows and tables: figures and checks of every cell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from repro.compare.cell_figures import cell_checks, cell_measures
from repro.record.folder.store import Record
from repro.suite.planning.cell import Cell
from repro.tables.layout import Column, TextTable, count, ends, figure, laid, name, rounded, words
from repro.tables.values import Row, as_number, bounds, plain


def measure_rows(record: Record, cells: Sequence[Cell]) -> Iterator[Row]:
    """Yield a row for every figure of every cell; none for other kinds of trial."""
    for cell in cells:
        for item in cell_measures(record.of_cell(cell.cell_id)):
            origin = "modelled" if item.label == "modelled" else record.origin_of(cell)
            row: Row = {"cell_id": cell.cell_id, "cell": plain(cell.label), "origin": origin,
                        "figure": plain(item.name), "title": plain(item.title), "unit": plain(item.unit),
                        "label": item.label, "n": item.n, "median": item.median}
            yield row | bounds("median", item.interval)


def check_rows(record: Record, cells: Sequence[Cell]) -> Iterator[Row]:
    """Yield a row for every check of every cell."""
    for cell in cells:
        for item in cell_checks(record.of_cell(cell.cell_id)):
            yield {"cell_id": cell.cell_id, "cell": plain(cell.label), "origin": record.origin_of(cell),
                   "check": plain(item.name), "n": item.n, "passed": item.passed, "worst_error": item.worst,
                   "limit": item.limit}


def operations_table(record: Record, cells: Sequence[Cell]) -> TextTable:
    """Return the medians of every cell with n and interval; no row for other kinds of trial."""
    return laid("Operations: medians over trials, not tested", (
        words("Cell", "cell"),
        Column("Figure", lambda row: name(f"{row['title']} ({row['unit']})".removesuffix(" ()")), numeric=False),
        Column("Figures", lambda row: str(row["origin" if row["label"] == "measured" else "label"]), numeric=False),
        count("n", "n"), figure("Median", "median"), ends("Interval", "median")), measure_rows(record, cells))


def checks_table(record: Record, cells: Sequence[Cell]) -> TextTable:
    """Return the worst error of every check of every cell."""
    return laid("Checks of the answers", (
        words("Cell", "cell"), words("Check", "check"), count("Passed", "passed", "n"),
        Column("Largest error", lambda row: "not finite" if row["worst_error"] is None else
               rounded(as_number(row["worst_error"]))),
        figure("Limit", "limit")), check_rows(record, cells))
