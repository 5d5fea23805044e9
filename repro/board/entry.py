"""One record of a board: the facts that its row shows, as plain data, so that other processes can return it."""

from __future__ import annotations

from typing import Literal

from repro.core.frozen import Frozen

Standing = Literal["verified", "modified", "not verified"]
"""verified: complete, unmodified, every result derived from its log again; published results never are."""


class Arm(Frozen):
    """One cell of a run, or one system of published results."""

    label: str
    median: float | None
    """Seconds of the record's metric if it is a time to the target; None: unknown, or another metric."""
    reached: int
    trials: int


class Answer(Frozen):
    """The declared contrast of a run."""

    candidate: str
    baseline: str
    verdict: str
    ratio: float | None
    low: float | None
    high: float | None
    because: str


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
    answer: Answer | None

    @property
    def best(self) -> Arm | None:
        """The arm with the least median among those that reached the target in all trials."""
        known = [arm for arm in self.arms if arm.median is not None and arm.reached == arm.trials]
        return min(known, key=lambda arm: arm.median or 0.0, default=None)
