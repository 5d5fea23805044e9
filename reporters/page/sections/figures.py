"""Figures of training by cell, one small table a group: speed, memory, input, energy, model."""

from __future__ import annotations

from dataclasses import dataclass

from repro.compare.cell_figures import GROUPS, Figure, notes
from repro.compare.findings import Findings
from repro.tables.text import Number, number, seconds

from ..cells import CellMark, marks


@dataclass(frozen=True, slots=True)
class FigureTable:
    """One group."""

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[CellMark, tuple[Number | None, ...]], ...]


@dataclass(frozen=True, slots=True)
class Figures:
    """The section; it has no table for records of versions that had no such figures."""

    tables: tuple[FigureTable, ...]
    notes: tuple[str, ...]


def figures(findings: Findings) -> Figures:
    """Return the medians of every cell, without columns that no cell has a value in."""
    known, found = marks(findings.record), findings.figures
    tables = []
    for title, group in GROUPS.items():
        columns = [item for item in group if any(item.path in values for values in found.values())]
        if columns:
            rows = tuple((known[cell_id], tuple(_shown(values.get(item.path), item) for item in columns))
                         for cell_id, values in found.items())
            tables.append(FigureTable(title, tuple(item.title for item in columns), rows))
    return Figures(tuple(tables), tuple(notes(findings.record.results)) if tables else ())


def _shown(value: float | None, figure: Figure) -> Number | None:
    return seconds(value) if figure.unit == "s" else number(value, 4, figure.unit)
