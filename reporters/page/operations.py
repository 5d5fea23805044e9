"""Figures of measurements: one table of figures and one of checks, a row a cell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from repro.compare.operation_figures import CellCheck, CellFigure, cell_checks, cell_measures
from repro.record.folder.store import Record
from repro.tables.text import Number, limited, number, seconds, significant, visible, without_paths

from .cells import CellMark, marks


@dataclass(frozen=True, slots=True)
class FigureColumn:
    """One figure, in a column: its words and where it comes from."""

    title: str
    label: str


@dataclass(frozen=True, slots=True)
class ShownFigure:
    """One median with its interval."""

    median: Number | None
    ends: tuple[Number | None, Number | None] | None
    n: int


@dataclass(frozen=True, slots=True)
class FigureRow:
    """One cell in the table of figures."""

    mark: CellMark
    figures: tuple[ShownFigure | None, ...]


@dataclass(frozen=True, slots=True)
class CheckRow:
    """One check of one cell."""

    mark: CellMark
    name: str
    passed: str
    all_passed: bool
    worst: str
    limit: str


@dataclass(frozen=True, slots=True)
class Operations:
    """The section; no rows for other kinds of trial."""

    columns: tuple[FigureColumn, ...]
    rows: tuple[FigureRow, ...]
    checks: tuple[CheckRow, ...]


def operations(record: Record) -> Operations:
    """Return the figures and the checks of every cell."""
    known = marks(record)
    found = {cell.cell_id: cell_measures(record.of_cell(cell.cell_id)) for cell in record.plan.cells}
    columns = _columns(found.values())
    rows = tuple(FigureRow(known[cell_id], tuple(_shown(items, name, title) for name, title in columns))
                 for cell_id, items in found.items())
    checks = tuple(_check(known[cell.cell_id], item) for cell in record.plan.cells
                   for item in cell_checks(record.of_cell(cell.cell_id)))
    return Operations(tuple(columns.values()), rows if columns else (), checks)


def _columns(cells: Iterable[Sequence[CellFigure]]) -> dict[tuple[str, str], FigureColumn]:
    """Return the figures that any cell has, in the order of the first cell that has them."""
    return {(item.name, item.title): FigureColumn(
        _text(f"{item.title}, {item.unit}" if item.unit.endswith(" an operation") else item.title), item.label)
        for items in cells for item in items}


def _shown(items: Sequence[CellFigure], name: str, title: str) -> ShownFigure | None:
    item = next((item for item in items if (item.name, item.title) == (name, title)), None)
    if item is None:
        return None
    ends = (_number(item, item.interval.low), _number(item, item.interval.high)) if item.interval else None
    return ShownFigure(_number(item, item.median), ends, item.n)


def _number(item: CellFigure, value: float) -> Number | None:
    return seconds(value) if item.unit == "s" else number(value, 4, _text(item.unit.removesuffix(" an operation")))


def _check(mark: CellMark, item: CellCheck) -> CheckRow:
    worst = "not finite" if item.worst is None else significant(item.worst)
    passed = f"{item.passed} of {item.n}"
    return CheckRow(mark, _text(item.name), passed, item.passed == item.n, worst, f"{item.limit:g}")


def _text(words: str) -> str:
    """Return words of a plug-in as the page shows them."""
    return limited(visible(without_paths(words)))
