"""Figures of training by cell, one small table a group: speed, memory, input, energy, model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from repro.compare.cell_figures import GROUPS, Figure, notes
from repro.compare.findings import Findings
from repro.record.folder.store import Record
from repro.record.result.parts import Energy
from repro.record.result.remarks import OBSERVER_LIMIT
from repro.record.result.results import Result
from repro.tables.text import Number, number, seconds, share

from ..cells import CellMark, marks


@dataclass(frozen=True, slots=True)
class EnergyRow:
    """One cell: medians over its tracked trials."""

    mark: CellMark
    n: int
    joules: Number | None
    watts: Number | None
    provenance: str
    """modelled if any part of any trial is."""


@dataclass(frozen=True, slots=True)
class EnergyView:
    """The section."""

    rows: tuple[EnergyRow, ...]
    parts: tuple[tuple[str, str, str], ...]
    """(hardware, provenance, method) of all trials."""
    tools: tuple[str, ...]
    observer: Number | str
    """Largest share of one core that the tracker used."""
    limit: Number | str
    beyond: bool
    provenance: str


def energy(record: Record) -> EnergyView | None:
    """Return None if no trial was tracked."""
    known = marks(record)
    found = [item.energy for item in record.results if item.energy is not None]
    if not found:
        return None
    rows = [_row(known[cell.cell_id], record.of_cell(cell.cell_id)) for cell in record.plan.cells]
    parts = dict.fromkeys((kind, part.provenance, part.how) for item in found for kind, part in item.parts.items())
    most = max((item.observer_share or 0.0) for item in found)
    return EnergyView(
        tuple(row for row in rows if row.n), tuple(parts), tuple(dict.fromkeys(item.tool for item in found)),
        share(most) or "0", share(OBSERVER_LIMIT) or "", most > OBSERVER_LIMIT, _provenance(found),
    )


def _row(mark: CellMark, results: Sequence[Result]) -> EnergyRow:
    found = [item.energy for item in results if item.energy is not None]
    watts = [item.watts for item in found if item.watts is not None]
    return EnergyRow(mark, len(found), number(median(item.joules for item in found), 3, "J") if found else None,
                     number(median(watts), 3, "W") if watts else None, _provenance(found))


def _provenance(found: Sequence[Energy]) -> str:
    return "measured" if found and all(item.provenance == "measured" for item in found) else "modelled"


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
