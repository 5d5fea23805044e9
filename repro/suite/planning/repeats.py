"""The repeats that a suite plans for every cell, and the two cells that a sequential design judges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from repro.core import pattern
from repro.suite.model import Suite
from repro.suite.planning.cell import Cell


def planned_repeats(suite: Suite, cells: Sequence[Cell]) -> list[int]:
    """Return the most repeats of every cell: one that the primary contrast does not need stops at the first look."""
    if not suite.looks:
        return [suite.seeds] * len(cells)
    judged = judged_cells(suite, cells)
    return [suite.seeds if index in judged else suite.looks[0] for index in range(len(cells))]


def judged_cells(suite: Suite, cells: Sequence[Cell]) -> tuple[int, ...]:
    """Return the places of the two cells that decide when a sequential run stops; () if one of them is missing here."""
    if not suite.looks or suite.primary is None:
        return ()
    data = [cell.choices.model_dump(mode="json", by_alias=True) for cell in cells]
    found = [next((index for index, item in enumerate(data) if pattern.matches(item, wanted)), None)
             for wanted in (suite.primary.candidate, suite.primary.baseline)]
    return tuple(index for index in found if index is not None) if None not in found else ()


def lost_design(suite: Suite, cells: Sequence[Cell]) -> str:
    """Return what becomes of a sequential design whose two cells cannot both run here; "" if they can."""
    if not suite.looks or judged_cells(suite, cells):
        return ""
    return ("no look is taken: a cell of the primary contrast cannot run here; every cell runs "
            f"{suite.looks[0]} times, the pairs of the first look")


def without_primary(suite: Suite) -> dict[str, Any]:
    """Return the changes of a suite that loses its primary contrast: nothing is left to stop for."""
    return {"primary": None} | ({"sequential": None, "seeds": suite.looks[0]} if suite.looks else {})
