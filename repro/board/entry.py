"""One record of a board: the facts that its row shows, as plain data, so that other processes can return it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from repro.compare.figures import Repeated
from repro.compare.runs.together import Part, over_records
from repro.core.frozen import Frozen
from repro.stats.random_effects import LEAST, RandomEffects

Standing = Literal["verified", "modified", "not verified"]
"""verified: complete, unmodified, every result derived from its log again; published results never are."""


class Arm(Frozen):
    """One cell of a run."""

    label: str
    median: float | None
    """Seconds of the record's metric if it is a time to the target; None: unknown, another metric, or the cells have
    several tasks or targets: the least would be that of the easiest."""
    reached: int
    trials: int


class Answer(Frozen):
    """The declared contrast of a run, or one of its declared main effects."""

    candidate: str
    baseline: str
    says: tuple[str, str]
    """Words around the ratio: the candidate `takes` 0.8 x `as long as` the baseline."""
    verdict: str
    ratio: float | None
    low: float | None
    high: float | None
    because: str
    qualifier: str = ""
    """Words after the verdict, without which it would say too much."""
    scope: str = ""
    """Combinations over which a main effect is averaged; "" for a contrast of cells."""

    def asks(self, other: Answer) -> bool:
        """Return whether both are about the same contrast."""
        return (self.candidate, self.baseline, self.says) == (other.candidate, other.baseline, other.says)


class Statement(Frozen):
    """One answer of published results: a claim of a contest, or the lowest valid score of a benchmark."""

    about: str
    """Track or benchmark, and its round."""
    subject: str
    runs: int
    seconds: float | None
    """The program's own score."""
    anchor: str
    """Place of its figures on the page of the record."""
    against: str = ""
    """The arm that the ratio is to; "": none."""
    against_runs: int = 0
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: str = ""
    """Of the claim of time; "" for a score, whose order is no verdict."""
    target: str = ""
    mean: float | None = None
    """Mean loss at the end, which the claim of quality is about."""
    quality: str = ""
    """Verdict on the claim that the target is met; "" for a score."""
    cautions: tuple[str, ...] = ()


class Entry(Frozen):
    """One record."""

    place: str
    """Path below the folder of the board."""
    sha256: str
    """Of the bundle, or of a published record's results; "" for a folder."""
    identity: str
    """sha256 of the record's index, which two bundles of one run share; "" if there is none."""
    kind: Literal["run", "published"]
    standing: Standing
    why: str
    """Why it is not verified; "" if it is."""
    suite: str
    title: str
    question: str
    """Key of the records that answer one question: digest of the suite, rules of the method, hash of the data."""
    goal: str
    system: str
    engines: tuple[str, ...]
    version: str
    day: str
    """Date of the start, ISO; "" if it is unknown."""
    started_ms: int
    """The same in milliseconds since 1970; 0 if it is unknown."""
    origin: str
    """measured, emulated, simulated or published."""
    arms: tuple[Arm, ...]
    """Of a run."""
    answers: tuple[Answer, ...]
    """Of a run: the declared contrast, else the declared main effects; empty if nothing was declared."""
    statements: tuple[Statement, ...] = ()
    """Of published results; the latest claims first."""
    repeated: tuple[Repeated, ...] = ()
    """Cells with fewer trainings than trials."""
    part: Part | None = None
    """Its declared contrast, as one of several records."""

    @property
    def best(self) -> Arm | None:
        """The arm with the least median among those that reached the target in all trials."""
        known = [arm for arm in self.arms if arm.median is not None and arm.reached == arm.trials]
        return min(known, key=lambda arm: arm.median or 0.0, default=None)


@dataclass(frozen=True, slots=True)
class Step:
    """A record that was better than all before it on its system."""

    day: str
    seconds: float
    entry: Entry


@dataclass(frozen=True, slots=True)
class Mean:
    """One contrast over several records."""

    answer: Answer
    """Of the latest of them: its cells and words."""
    effects: RandomEffects
    left_out: tuple[Part, ...]
    """Verified records that do not count, with the reason."""


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

    @property
    def mean(self) -> Mean | None:
        """The declared contrast over the verified records; None: fewer than three count."""
        known = [(item.part, item.answers[0]) for item in self.entries if item.part and item.standing == "verified"]
        if not known:
            return None
        of = known[-1][1]
        parts, found = over_records([part if part.left_out or answer.asks(of) else part.model_copy(
            update={"left_out": "it declares another contrast"}) for part, answer in known])
        if found is None or found.count < LEAST:
            return None
        return Mean(of, found, tuple(part for part in parts if part.left_out))

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
