"""What a short report shows of a record: all of it, or what belongs to the declared contrast."""

from __future__ import annotations

from dataclasses import dataclass

from repro.compare import Comparison
from repro.compare.design.effect import MainEffect
from repro.compare.runs.findings import Findings, findings
from repro.core.errors import UsageError
from repro.record.folder.store import Record
from repro.suite.planning.cell import Cell


@dataclass(frozen=True, slots=True)
class Shown:
    """Cells and verdicts, in the order of the plan and of `repro compare`."""

    found: Findings
    """Of the whole record."""
    cells: tuple[Cell, ...]
    comparisons: tuple[Comparison, ...]
    effects: tuple[MainEffect, ...]
    whole: bool
    """False: the declared contrast and its two cells. Its verdict still comes from the whole record."""

    def has(self, cell_id: str) -> bool:
        return any(cell.cell_id == cell_id for cell in self.cells)


def shown_of(record: Record, only_primary: bool = False) -> Shown:
    """Select what is shown.

    Raises:
        UsageError: only the declared contrast is asked for, and the suite declares none.
    """
    found = findings(record)
    if not only_primary:
        return Shown(found, record.plan.cells, found.comparisons, found.effects, True)
    primary = tuple(item for item in found.comparisons if item.primary)
    if not primary:
        raise UsageError("--only primary: the suite declares no primary contrast; leave --only out")
    ids = {cell_id for item in primary for cell_id in (item.candidate, item.baseline)}
    return Shown(found, tuple(cell for cell in record.plan.cells if cell.cell_id in ids), primary, (), False)
