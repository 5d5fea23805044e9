"""Entries -> groups of records that answer one question, and the progression of each over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from repro.board.entry import Entry


@dataclass(frozen=True, slots=True)
class Step:
    """A record that was better than all before it on its system."""

    day: str
    seconds: float
    entry: Entry


@dataclass(frozen=True, slots=True)
class Group:
    """Records that answer one question: one suite digest and one method."""

    question: str
    entries: tuple[Entry, ...]
    """By start, then by path."""

    @property
    def first(self) -> Entry:
        return self.entries[0]

    @property
    def systems(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(item.system for item in self.entries))

    def progression(self, system: str) -> tuple[Step, ...]:
        """Return the verified records of a system that had the least median so far, the earliest first."""
        found: list[Step] = []
        for item in self.entries:
            best = item.best
            if item.standing != "verified" or item.system != system or best is None or best.median is None:
                continue
            if not found or best.median < found[-1].seconds:
                found.append(Step(item.day, best.median, item))
        return tuple(found)


def without_copies(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries; a second bundle of one record no longer counts as verified, and names the first."""
    first: dict[str, Entry] = {}
    found = []
    for item in sorted(entries, key=lambda item: item.place):
        original = first.setdefault(item.identity, item) if item.identity else item
        found.append(item if original is item else item.model_copy(
            update={"standing": "not verified", "why": f"a copy of {original.place}"}))
    return found


def grouped(entries: Sequence[Entry]) -> list[Group]:
    """Return the groups, those with most verified records first; published results and unreadable files come last."""
    found: dict[str, list[Entry]] = {}
    for item in sorted(entries, key=lambda item: (item.started_ms, item.place)):
        found.setdefault(item.question, []).append(item)
    groups = [Group(question, tuple(items)) for question, items in found.items()]
    return sorted(groups, key=lambda group: (
        group.first.kind != "run" or not group.first.day, -sum(item.standing == "verified" for item in group.entries),
        group.first.suite, group.question))
