"""The notes of a ledger: the steps that contradict it, one note of each kind."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import astuple, dataclass
from typing import Any

from repro.record.log.facts import Cause, LedgerNote, NoteKind
from repro.worker.ledger.writes import Others


@dataclass(slots=True)
class Note:
    """The first step that contradicts the ledger in one way, and how often one does."""

    step: int
    found: float
    wanted: float
    times: int = 1
    cause: Cause = ""
    name: str = ""
    """Of a tensor, or an option."""
    tensors: int = 0
    until: int = 0
    """The first such step is this one at the latest."""


class Notes:
    """The notes of one rank."""

    def __init__(self) -> None:
        self._notes: dict[NoteKind, Note] = {}

    def add(
        self, kind: NoteKind, step: int, found: float, wanted: float, cause: Cause = "", of: Others | None = None,
        until: int = 0,
    ) -> None:
        """Add a step that contradicts the ledger.

        Args:
            step: from 0.
            of: the tensors, or the option, with the numbers found and wanted.
            until: it happened in a step from `step` to this one; 0: in `step`.
        """
        if (known := self._notes.get(kind)) is None:
            of = of or Others("", 0, found, wanted)
            self._notes[kind] = Note(step, float(of.found), float(of.wanted), 1, cause, of.name, of.tensors,
                                     max(until, step))
            return
        # The second rate tells that of the step before from that of the first one; later ones must have this cause.
        known.cause = cause if cause == known.cause or (kind == "rate" and known.times == 1) else ""
        known.times, known.step = known.times + 1, min(known.step, step)

    def cause(self, kind: NoteKind) -> Cause | None:
        """Return the cause of a kind's note; None if there is no such note."""
        return self._notes[kind].cause if kind in self._notes else None

    def facts(self, without: Collection[str], others: Mapping[NoteKind, Note]) -> tuple[LedgerNote, ...]:
        """Return all notes but those of some kinds, and others, in the order of their kinds."""
        found = {kind: note for kind, note in self._notes.items() if kind not in without} | {**others}
        return tuple(
            LedgerNote(kind=kind, step=note.step, times=note.times, found=note.found, wanted=note.wanted,
                       cause=note.cause, name=note.name, tensors=note.tensors, until=max(note.until, note.step))
            for kind, note in sorted(found.items()))

    def state(self) -> dict[str, list[Any]]:
        """Return what `restore` takes (JSON-like)."""
        return {kind: [*astuple(note)] for kind, note in self._notes.items()}

    def restore(self, state: Mapping[NoteKind, list[Any]]) -> None:
        """Continue from what `state` returned."""
        self._notes = {kind: Note(*values) for kind, values in state.items()}
