"""A watcher for runs that a test carries out itself."""

from __future__ import annotations

from dataclasses import dataclass, field

from repro.compare.figures import Comparison
from repro.record.folder.ledger import Look
from repro.record.result.results import Result
from repro.suite.model import Trial
from repro.suite.planning.cell import Cell


@dataclass
class Silent:
    """Prints nothing and records its messages."""

    said: list[str] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)

    def stage(self, text: str) -> None:
        self.said.append(text)

    def trial_started(
        self, number: int, count: int, trial: Trial, cell: Cell, next_look: int | None = None,
    ) -> None: ...
    def trial_ticked(self, value: float | None, epochs: float, samples_per_second: float | None) -> None: ...
    def trial_ended(self, result: Result, seconds: float) -> None: ...

    def look_taken(self, look: Look, found: Comparison) -> None:
        self.looks.append(look)
