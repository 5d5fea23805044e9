"""The split of the time: medians of the phases of each cell, as bars and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from repro.compare.findings import Findings
from repro.core.numbers import plain_sum
from repro.record.result.results import LOST, PHASES, Result
from repro.tables.text import Number, seconds

from ..axis import Axis, from_zero
from ..cells import CellMark, marks

WORDS = {"train": "training", "eval": "evaluation", "checkpoint": "checkpoints", "logging": "logging", "other": "other",
         LOST: "lost before resuming from a checkpoint"}


@dataclass(frozen=True, slots=True)
class Segment:
    """One phase in a bar, per cent of the width."""

    phase: str
    left: float
    width: float
    words: str


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """One cell: medians over its trials that ran to the end."""

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
    keys: tuple[tuple[str, str], ...]
    """(phase, its name on the page) of all shown phases."""
    axis: Axis
    rows: tuple[PhaseRow, ...]
    any: bool


def phases(findings: Findings) -> Phases:
    """Compute the median seconds of each phase; medians of different trials are never added up."""
    record = findings.record
    known = marks(record)
    ended = {cell_id: [item for item in record.of_cell(cell_id) if item.phases] for cell_id in known}
    names = (*PHASES, LOST) if any(LOST in item.phases for items in ended.values() for item in items) else PHASES
    totals = [plain_sum(value or 0.0 for value in _medians(items, names)) for items in ended.values()]
    top = max(totals, default=0.0)
    scale = from_zero([top] if top else [])
    rows = tuple(_row(findings, known[cell_id], items, names, scale) for cell_id, items in ended.items())
    keys = tuple((name, WORDS[name]) for name in names)
    return Phases(names=tuple(word for _, word in keys), keys=keys, axis=scale, rows=rows, any=any(ended.values()))


def _medians(items: Sequence[Result], names: Sequence[str]) -> list[float | None]:
    if not items:
        return [None] * len(names)
    return [median([item.phases.get(name, 0.0) for item in items]) for name in names]


def _row(findings: Findings, mark: CellMark, items: Sequence[Result], names: Sequence[str], scale: Axis) -> PhaseRow:
    values = _medians(items, names)
    cold = findings.summary(mark.cell_id, "tta_cold").median
    inits = [item.init_seconds for item in findings.record.of_cell(mark.cell_id) if item.init_seconds is not None]
    runs = [item.run_seconds for item in items if item.run_seconds is not None]
    parts = [f"{WORDS[name]} {seconds(value)}" for name, value in zip(names, values, strict=True) if value]
    return PhaseRow(
        mark=mark, n=len(items), phases=tuple(seconds(value) for value in values),
        run=seconds(median(runs)) if runs else None, init=seconds(median(inits)) if inits else None,
        cold=seconds(cold), segments=tuple(_segments(names, values, scale)),
        words=", ".join(parts) or "no trial ran to the end",
    )


def _segments(names: Sequence[str], values: Sequence[float | None], scale: Axis) -> list[Segment]:
    found, passed = [], 0.0
    for name, value in zip(names, values, strict=True):
        if value:
            left, right = scale.at(passed), scale.at(passed + value)
            found.append(Segment(name, left, round(right - left, 3), f"{WORDS[name]}: {seconds(value)}"))
            passed += value
    return found
