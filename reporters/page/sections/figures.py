"""Figures of cells beside the time to the target: of training by group, of measurements with checks, energy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from repro.compare.cell_figures import GROUPS, CellFigure, Figure, cell_measures
from repro.compare.findings import Findings
from repro.core.numbers import known_median
from repro.record.folder.store import Record
from repro.record.result.parts import Energy
from repro.tables.text import Number, limited, number, seconds, visible, without_paths


def figures(findings: Findings) -> dict[str, list[Figure]]:
    """Return each group with its figures that any cell has a value of."""
    known = {path for values in findings.figures.values() for path in values}
    groups = {title: [item for item in group if item.path in known] for title, group in GROUPS.items()}
    return {title: group for title, group in groups.items() if group}


def in_its_unit(value: float | None, unit: str) -> Number | None:
    """Format a figure; the words of a plug-in are shown without hidden characters and paths."""
    return seconds(value) if unit == "s" else number(value, 4, limited(visible(without_paths(unit))))


# ---- operations


@dataclass(frozen=True, slots=True)
class Measures:
    """The figures of measurements; no columns for other kinds of trial."""

    columns: dict[tuple[str, str], CellFigure]
    """(name, title) -> the figure of the first cell that has it, in the order of these cells."""
    cells: dict[str, dict[tuple[str, str], CellFigure]]


def measures(record: Record) -> Measures:
    """Return the figures of every cell."""
    found = {cell.cell_id: {(item.name, item.title): item for item in cell_measures(record.of_cell(cell.cell_id))}
             for cell in record.plan.cells}
    return Measures({key: item for of in reversed(found.values()) for key, item in of.items()}, found)


# ---- energy


@dataclass(frozen=True, slots=True)
class TrackedCell:
    """One cell: medians over its tracked trials."""

    cell_id: str
    n: int
    joules: float
    watts: float | None
    provenance: str
    """modelled if any part of any trial is."""


@dataclass(frozen=True, slots=True)
class Tracked:
    """The section."""

    cells: tuple[TrackedCell, ...]
    trials: tuple[Energy, ...]
    provenance: str

    @property
    def parts(self) -> list[tuple[str, str, str]]:
        """(hardware, provenance, method) of all trials."""
        return list(dict.fromkeys((kind, part.provenance, part.how)
                                  for item in self.trials for kind, part in item.parts.items()))

    @property
    def observer(self) -> float:
        """Largest share of one core that the tracker used."""
        return max((item.observer_share or 0.0) for item in self.trials)


def energy(record: Record) -> Tracked | None:
    """Return None if no trial was tracked."""
    by_cell = {cell.cell_id: [item.energy for item in record.of_cell(cell.cell_id) if item.energy is not None]
               for cell in record.plan.cells}
    found = tuple(item.energy for item in record.results if item.energy is not None)
    cells = tuple(TrackedCell(cell_id, len(items), median(item.joules for item in items),
                              known_median(item.watts for item in items), _provenance(items))
                  for cell_id, items in by_cell.items() if items)
    return Tracked(cells, found, _provenance(found)) if found else None


def _provenance(found: Sequence[Energy]) -> str:
    return "measured" if all(item.provenance == "measured" for item in found) else "modelled"
