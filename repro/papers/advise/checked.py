"""Predicted speed-ups beside measured ones."""

from __future__ import annotations

from collections.abc import Sequence

from repro.core.frozen import Frozen
from repro.papers.advise.estimate import Estimated, estimated
from repro.papers.advise.predict import Advice, family_of, step_of
from repro.record.folder.store import Record
from repro.record.result.status import meaning
from repro.suite.planning.cell import Cell


class CheckRow(Frozen):
    """One family with one number of workers."""

    family: str
    workers: int
    predicted: Estimated
    measured: Estimated | None
    """By seed of the check, over one worker of the same seed; None: `why`."""
    ratio: float | None
    """Predicted over measured."""
    why: str = ""


def check(advice: Advice, record: Record) -> tuple[CheckRow, ...]:
    """Return all predictions whose workers the record ran, or should have run."""
    families: dict[str, dict[int, Cell]] = {}
    for cell in record.plan.cells:
        families.setdefault(family_of(cell), {})[cell.choices.processes] = cell
    rows = []
    for item in advice.families:
        cells = families.get(item.family, {})
        for row in item.workers:
            if row.workers in cells:
                measured = _speed_ups(record, cells, row.workers) if 1 in cells else []
                found = estimated(measured) if measured else None
                rows.append(CheckRow(
                    family=item.family, workers=row.workers, predicted=row.speed_up, measured=found,
                    ratio=row.speed_up.value / found.value if found else None,
                    why="" if found else "no seed has a completed trial with this number of workers and with one"))
    return tuple(rows)


def _speed_ups(record: Record, cells: dict[int, Cell], workers: int) -> Sequence[float]:
    def steps(count: int) -> dict[int, float]:
        return {item.repeat: step_of(item) for item in record.of_cell(cells[count].cell_id)
                if meaning(item.status).completed and item.steps}

    alone, together = steps(1), steps(workers)
    return [workers * alone[repeat] / seconds for repeat, seconds in together.items() if repeat in alone]
