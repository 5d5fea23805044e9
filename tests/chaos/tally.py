"""The events of a drive, and the failure of an invariant."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


class Broken(AssertionError):
    """Something that must hold does not."""


@dataclass
class Tally:
    """The events of a drive."""

    faults: Counter[str] = field(default_factory=Counter)
    checks: Counter[str] = field(default_factory=Counter)
    """Times that each invariant was looked at."""
    broken: list[str] = field(default_factory=list)
    missed: int = 0
    """Faults that came too late to hit anything; they were tried again."""
    folders: int = 0
    starts: int = 0
    trials: int = 0
    attempts: Counter[str] = field(default_factory=Counter)
    resumed: Counter[str] = field(default_factory=Counter)
    """Attempts resumed from a checkpoint, by status."""

    def add(self, other: Tally) -> None:
        self.faults += other.faults
        self.checks += other.checks
        self.attempts += other.attempts
        self.resumed += other.resumed
        self.broken += other.broken
        self.missed += other.missed
        self.folders += other.folders
        self.starts += other.starts
        self.trials += other.trials

    def text(self, seconds: float) -> str:
        def counts(found: Counter[str]) -> str:
            return ", ".join(f"{count} {kind}" for kind, count in sorted(found.items()))

        lines = [f"{sum(self.faults.values())} faults injected: {counts(self.faults)}; {self.missed} came too late and "
                 "were tried again",
                 f"{self.folders} runs in {self.starts} starts, {self.trials} trials, attempts: "
                 f"{counts(self.attempts)}",
                 f"{sum(self.resumed.values())} attempts resumed from a checkpoint"
                 f"{f': {counts(self.resumed)}' if self.resumed else ''}",
                 f"{sum(self.checks.values())} invariants checked: {counts(self.checks)}",
                 *(f"BROKEN: {text}" for text in self.broken), f"broken: {len(self.broken)}, {seconds:.0f} s"]
        return "\n".join(lines)
