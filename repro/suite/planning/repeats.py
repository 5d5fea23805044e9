"""The design of a plan: that of its suite, as far as the cells that can run here allow it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from repro.core import pattern
from repro.suite.design import Design, PlanKind, SequentialDesign, judges_of_all
from repro.suite.model import Suite
from repro.suite.planning.cell import Cell


def planned_design(suite: Suite, cells: Sequence[Cell], kind: PlanKind = "suite") -> Design:
    """Return the design of the cells of a suite that run here.

    Without one of the cells of its primary contrast a sequential design has the fixed repeats of its first look.
    """
    judges = judges_of_all({cell.choices.stop.judges for cell in cells})
    if suite.sequential is None or kind != "suite":
        return Design(judges=judges, repeats=suite.seeds, scored=kind != "tuning")
    judged = _judged_cells(suite, cells)
    if not judged:
        return Design(judges=judges, repeats=suite.design.common)
    return SequentialDesign(judges=judges, repeats=suite.seeds, sequential=suite.sequential, judged=judged)


def _judged_cells(suite: Suite, cells: Sequence[Cell]) -> tuple[int, ...]:
    """Return the places of the two cells that decide when a sequential run stops; () if one of them is missing here."""
    if suite.primary is None:
        return ()
    data = [cell.choices.model_dump(mode="json", by_alias=True) for cell in cells]
    found = [next((index for index, item in enumerate(data) if pattern.matches(item, wanted)), None)
             for wanted in (suite.primary.candidate, suite.primary.baseline)]
    return tuple(index for index in found if index is not None) if None not in found else ()


def lost_design(suite: Suite, design: Design) -> str:
    """Return what becomes of a sequential design whose two cells cannot both run here; "" if they can."""
    if suite.sequential is None or design.looks:
        return ""
    return ("no look is taken: a cell of the primary contrast cannot run here; every cell runs "
            f"{design.repeats} times, the pairs of the first look")


def without_primary(suite: Suite) -> dict[str, Any]:
    """Return the changes of a suite that loses its primary contrast: nothing is left to stop for."""
    return {"primary": None} | ({"sequential": None, "seeds": suite.design.common} if suite.sequential else {})
