"""The split of the time by phase, and trust in the clocks: determinism, conservation, observer effect, pairing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from repro.compare import PAIRED_HASHES
from repro.compare.findings import Findings, findings
from repro.core.numbers import known_median, plain_sum
from repro.record.folder.store import Record
from repro.record.result.result_warnings import CONSERVATION_TOLERANCE, LOGGING_LIMIT, OTHER_SHARE
from repro.record.result.results import LOST, PHASES, Result
from repro.tables.tables import Table
from repro.tables.text import seconds
from repro.tables.values import Row, plain

from ..axis import Axis, from_zero
from ..cells import CellMark, marks

WORDS = {"train": "training", "eval": "evaluation", "checkpoint": "checkpoints", "logging": "logging", "other": "other",
         LOST: "lost before resuming from a checkpoint"}
LEVELS = {
    "bitwise": "deterministic kernels are requested: on one machine the same seed gives identical bits",
    "seeded": "every random stream is derived from the seed; kernels can add in any order",
    "unknown": "a program of the user's: the harness does not control its random numbers",
    "free": "as seeded, but the generator of torch (used by dropout, for example) is not seeded",
}
"""Declared determinism -> its meaning."""


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """One cell: median seconds over its trials that ran to the end; None if none did."""

    mark: CellMark
    n: int
    phases: dict[str, float | None]
    run: float | None
    init: float | None
    cold: float | None

    @property
    def words(self) -> str:
        """Describe the bar."""
        parts = [f"{WORDS[name]} {seconds(value)}" for name, value in self.phases.items() if value]
        return ", ".join(parts) or "no trial ran to the end"


@dataclass(frozen=True, slots=True)
class Phases:
    """All cells on one axis of seconds."""

    names: dict[str, str]
    """Phase -> its name on the page, of all shown phases."""
    axis: Axis
    rows: tuple[PhaseRow, ...]

    def segments(self, row: PhaseRow) -> list[tuple[str, float, float, str]]:
        """Return (phase, left, width, tooltip) of each part of a bar, in per cent of the width."""
        found, passed = [], 0.0
        for name, value in row.phases.items():
            if value:
                left, right = self.axis.at(passed), self.axis.at(passed + value)
                found.append((name, left, round(right - left, 3), f"{WORDS[name]}: {seconds(value)}"))
                passed += value
        return found


def phases(findings: Findings) -> Phases:
    """Compute the median seconds of each phase; medians of different trials are never added up."""
    lost = any(LOST in item.phases for item in findings.record.results)
    names = {name: WORDS[name] for name in ((*PHASES, LOST) if lost else PHASES)}
    rows = tuple(_phase_row(findings, mark, names) for mark in marks(findings.record).values())
    top = max((plain_sum(value or 0.0 for value in row.phases.values()) for row in rows), default=0.0)
    return Phases(names, from_zero([top] if top else []), rows)


def _phase_row(findings: Findings, mark: CellMark, names: dict[str, str]) -> PhaseRow:
    results = findings.record.of_cell(mark.cell_id)
    ended = [item for item in results if item.phases]
    return PhaseRow(
        mark, len(ended), {name: known_median([item.phases.get(name, 0.0) for item in ended]) for name in names},
        run=known_median([item.run_seconds for item in ended]),
        init=known_median([item.init_seconds for item in results]),
        cold=findings.summary(mark.cell_id, "tta_cold").median)


def phase_table(record: Record) -> Table:
    """Return one row per cell: where its time went."""
    rows: list[Row] = [
        {"cell_id": row.mark.cell_id, "cell": plain(row.mark.label), "origin": row.mark.origin, "n": row.n,
         **{f"median_{name}_seconds": value for name, value in row.phases.items()}, "median_run_seconds": row.run,
         "median_init_seconds": row.init, "median_tta_cold_seconds": row.cold}
        for row in phases(findings(record)).rows if row.n]
    return Table("phases", "One row per cell: median seconds of each phase", tuple(rows))


# ---- trust

CHECKS: tuple[tuple[str, float, Callable[[Result], float | None]], ...] = (
    ("Conservation error", CONSERVATION_TOLERANCE, lambda item: item.conservation_error),
    ("Observer effect", LOGGING_LIMIT, lambda item: item.observer_effect),
    ("Other time", OTHER_SHARE, lambda item: item.phases["other"] / item.run_seconds
     if item.run_seconds and "other" in item.phases else None),
)
"""(name, limit, share of the wall clock of a trial)."""


def worst(results: Sequence[Result], read: Callable[[Result], float | None]) -> tuple[float, str] | None:
    """Return the largest value over trials with its trial, not the mean: one trial with a wrong clock matters."""
    return max(((value, item.trial_id) for item in results if (value := read(item)) is not None), default=None)


def trust_table(record: Record) -> Table:
    """Return one row per cell: the worst of its clocks, and the trials that have it."""
    rows: list[Row] = []
    for mark in marks(record).values():
        row: Row = {"cell_id": mark.cell_id, "cell": plain(mark.label), "origin": mark.origin,
                    "determinism": record.cell(mark.cell_id).choices.repeatability}
        for name, (_, _, read) in zip(("conservation_error", "observer_effect", "other_share"), CHECKS, strict=True):
            value, trial = worst(record.of_cell(mark.cell_id), read) or (None, None)
            row |= {name: value, f"{name}_trial": trial}
        rows.append(row)
    return Table("trust", "One row per cell: the largest errors of its clocks over all trials", tuple(rows))


def pairing(record: Record) -> list[tuple[str, str]]:
    """Count, for each hash that pairing requires, the seeds in which all trials that logged it agree."""
    found = []
    for name in PAIRED_HASHES:
        by_seed: dict[int, list[str]] = {}
        for item in record.results:
            if name in item.hashes:
                by_seed.setdefault(item.repeat, []).append(item.hashes[name])
        several = [values for values in by_seed.values() if len(values) > 1]
        alike = sum(len(set(values)) == 1 for values in several)
        if several:
            found.append((name.replace("_", " "), f"identical between the cells for {alike} of {len(several)} seeds"))
    return found
