"""The result of verifying a record: the checks that were made, the problems, and the notes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from repro.core.errors import visible

ProblemKind = Literal["hash", "missing", "unlisted", "schema", "plan", "result", "ledger", "conservation", "pairing",
                      "looks", "code", "tuning"]
TRIAL_KINDS: frozenset[ProblemKind] = frozenset(
    {"hash", "missing", "unlisted", "result", "schema", "conservation", "pairing"})
"""Kinds of problem that, within the folder of a trial, concern only this trial."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that was modified, is missing, or contradicts the rest of the record."""

    place: str
    """File, relative to the run."""
    what: str
    kind: ProblemKind

    def text(self) -> str:
        return f"{self.place}: {self.what}"

    def as_json(self) -> dict[str, str]:
        return {"place": self.place, "kind": self.kind, "what": self.what}


@dataclass(slots=True)
class Verification:
    """Everything that was checked in one record, and everything that was found."""

    source: str
    identity: str | None = None
    """sha256 of the index; None: the run has none."""
    checked: dict[str, int] = field(default_factory=dict)
    """Kind of check -> number of checks made."""
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    read: dict[Path, Any] | None = None
    """The model of each file of a known schema; None: not kept."""

    @property
    def sound(self) -> bool:
        return not self.problems

    def count(self, what: str) -> None:
        self.checked[what] = self.checked.get(what, 0) + 1

    def add(self, place: str, what: str, kind: ProblemKind) -> None:
        self.problems.append(Problem(place, what, kind))

    def extend(self, problems: Iterable[Problem]) -> None:
        self.problems.extend(problems)

    def as_json(self) -> dict[str, Any]:
        return {"schema": 1, "source": self.source, "sound": self.sound, "identity": self.identity,
                "checked": self.checked, "notes": self.notes, "problems": [item.as_json() for item in self.problems]}

    def text(self) -> str:
        """Return what was checked, what was found, and which trials are unaffected."""
        checked = ", ".join(f"{count} {what}" for what, count in self.checked.items()) or "nothing could be checked"
        lines = [f"checked: {checked}"]
        if self.identity:
            lines.append(f"index:   sha256 {self.identity}")
        lines += [f"note: {visible(text)}" for text in self.notes]
        if self.sound:
            return "\n".join([*lines, f"{self.source}: sound"])
        lines += [f"{item.kind}: {visible(item.text())}" for item in self.problems]
        count = f"{len(self.problems)} problem{'s' if len(self.problems) != 1 else ''}"
        return "\n".join([*lines, f"{self.source}: MODIFIED, {count}; {_advice(self.problems)}"])


def _advice(problems: list[Problem]) -> str:
    """Return which trials are unaffected, or what to do if none can be trusted."""
    if any(item.place == "plan.json" for item in problems):
        return "without its plan no trial can be checked: request the record again"
    if any(item.kind == "tuning" or item.place.startswith("tuning/") for item in problems):
        return "the settings that were scored cannot be trusted to be those that the declared tuning chose"
    trials = sorted({item.place.split("/")[1] for item in problems if item.place.startswith("trials/")})
    if not trials:
        return "no trial is affected"
    if {item.kind for item in problems} <= TRIAL_KINDS:
        return f"affected trials: {', '.join(trials[:5])}{' ...' if len(trials) > 5 else ''}; the others are unaffected"
    return "request the record again, or reproduce it"
