"""Where the time went: medians of the phases of each cell, as bars and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from repro.compare import summarize
from repro.results import PHASES, Result
from repro.store import Record

from .page_axis import Axis, from_zero
from .page_cells import CellMark, marks
from .page_text import Number, seconds

WORDS = {"train": "training", "eval": "evaluation", "checkpoint": "checkpoints", "logging": "logging", "other": "other"}


@dataclass(frozen=True, slots=True)
class Segment:
    """One phase in a bar, per cent of the width."""

    phase: str
    left: float
    width: float
    words: str


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """One cell: medians over its trials that ran to their end."""

    mark: CellMark
    n: int
    phases: tuple[Number | None, ...]
    run: Number | None
    init: Number | None
    cold: Number | None
    segments: tuple[Segment, ...]
    words: str


@dataclass(frozen=True, slots=True)
class Phases:
    """All cells on one axis of seconds."""

    names: tuple[str, ...]
    axis: Axis
    rows: tuple[PhaseRow, ...]
    any: bool


def phases(record: Record) -> Phases:
    """Median seconds by phase; never the sum of what was measured on different trials as if it were one."""
    known = marks(record)
    ended = {cell_id: [item for item in record.of_cell(cell_id) if item.phases] for cell_id in known}
    totals = [sum(value or 0.0 for value in _medians(items)) for items in ended.values()]
    top = max(totals, default=0.0)
    scale = from_zero([top] if top else [])
    rows = tuple(_row(record, known[cell_id], items, scale) for cell_id, items in ended.items())
    return Phases(names=tuple(WORDS[name] for name in PHASES), axis=scale, rows=rows, any=any(ended.values()))


def _medians(items: Sequence[Result]) -> list[float | None]:
    if not items:
        return [None] * len(PHASES)
    return [median([item.phases.get(name, 0.0) for item in items]) for name in PHASES]


def _row(record: Record, mark: CellMark, items: Sequence[Result], scale: Axis) -> PhaseRow:
    values = _medians(items)
    cold = summarize(record.cell(mark.cell_id), record.of_cell(mark.cell_id), "tta_cold").median
    inits = [item.init_seconds for item in record.of_cell(mark.cell_id) if item.init_seconds is not None]
    runs = [item.run_seconds for item in items if item.run_seconds is not None]
    parts = [f"{WORDS[name]} {seconds(value)}" for name, value in zip(PHASES, values, strict=True) if value]
    return PhaseRow(
        mark=mark, n=len(items), phases=tuple(seconds(value) for value in values),
        run=seconds(median(runs)) if runs else None, init=seconds(median(inits)) if inits else None,
        cold=seconds(cold), segments=tuple(_segments(values, scale)),
        words=", ".join(parts) or "no trial ran to its end",
    )


def _segments(values: Sequence[float | None], scale: Axis) -> list[Segment]:
    found, passed = [], 0.0
    for name, value in zip(PHASES, values, strict=True):
        if value:
            left, right = scale.at(passed), scale.at(passed + value)
            found.append(Segment(name, left, round(right - left, 3), f"{WORDS[name]}: {seconds(value)}"))
            passed += value
    return found
