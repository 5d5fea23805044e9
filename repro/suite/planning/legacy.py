"""Reader of sentences in plans of version 0.1.0, where later versions have fields.

Version 0.1.0 marked a reproduction by a note, a calibration by its title and the second cell of a pair by a time limit
one second longer. Its records keep these words, and the names that follow from them.
"""

from __future__ import annotations

from collections.abc import Sequence

from repro.suite.design import PlanKind
from repro.suite.identity import canonical
from repro.suite.planning.cell import Cell

_REPRODUCTION = "a reproduction: "
_CALIBRATION = "A/A: cells of "
_SMOKE = " repeats make a smoke test, not a result"


def plan_kind(title: str, notes: Sequence[str]) -> PlanKind:
    """Return the kind of a plan that does not state one."""
    if any(note.startswith(_REPRODUCTION) for note in notes):  # which may be one of a calibration
        return "reproduction"
    return "calibration" if title.startswith(_CALIBRATION) else "suite"


def method_note(method: str) -> str:
    """Return what it means for the verdicts that a plan was made by an older method."""
    return (f"made by method {method}: seeds and order follow from the suite, so all runs have the same data, and a "
            "cell that is early in one run is early in all; with a machine that drifts this looks like a difference")


def smoke_note(notes: Sequence[str]) -> str:
    """Return the note which says that the suite is a smoke test; "" if there is none."""
    return next((note for note in notes if _SMOKE in note), "")


def with_sides(title: str, cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """Return the cells, those of a calibration with their sides: a twin is its cell with one more second."""
    if not title.startswith(_CALIBRATION):
        return tuple(cells)
    firsts: dict[tuple[str, float], str] = {}
    """(choices but for the time limit, the time limit of a twin) -> the id of side A."""
    found = []
    for cell in cells:
        untimed, seconds = canonical(cell.choices, exclude={"timeout_seconds"}), cell.choices.timeout_seconds
        first = firsts.get((untimed, seconds), "")
        if not first:
            firsts[untimed, seconds + 1] = cell.cell_id
        found.append(cell.model_copy(update={"side": "B" if first else "A", "twin_of": first}))
    return tuple(found)
