"""The parts of a run that every step needs: the plan, the run folder, the watcher; and the warnings to both."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from repro.compare.figures import Comparison
from repro.record.folder.ledger import IncidentKind, Look
from repro.record.folder.store import RunFolder
from repro.record.result.results import Result
from repro.suite.model import Trial
from repro.suite.planning.cell import Cell
from repro.suite.planning.plan import Plan


class Watcher(Protocol):
    """Shows the progress of a run (a terminal, a test)."""

    def stage(self, text: str) -> None:
        """Show that a part of the run other than a trial begins, or a warning."""

    def trial_started(
        self, number: int, count: int, trial: Trial, cell: Cell, next_look: int | None = None,
    ) -> None:
        """Show that trial `number` of at most `count` runs; the next look is after trial `next_look`."""

    def trial_ticked(self, value: float | None, epochs: float, samples_per_second: float | None) -> None: ...
    def trial_ended(self, result: Result, seconds: float) -> None: ...
    def look_taken(self, look: Look, found: Comparison) -> None: ...


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a run that do not belong to its plan."""

    force: bool = False
    """Resume a run even if machine, code or record have changed."""
    again: bool = False
    """Start trials again that crashed or hung, regardless of the suite."""
    strict: bool = False
    """Refuse or stop the run instead of warning that the machine would spoil its figures."""
    energy: bool = False
    """Measure energy with CodeCarbon in a separate process."""
    budget_seconds: float | None = None
    """End a sequential run when this time is spent; None: when it is settled."""
    register: Path | None = None
    """The key that signs the plan before the first trial, or the file in which it is registered."""


@dataclass(frozen=True, slots=True)
class RunContext:
    """One plan, carried out in one folder before one watcher."""

    plan: Plan
    folder: RunFolder
    watcher: Watcher

    def warn(self, kind: IncidentKind, text: str, trial_id: str = "") -> None:
        """Record a warning as an incident and show it."""
        self.folder.append_incident(kind, text, trial_id)
        self.watcher.stage(f"warning: {text}")
