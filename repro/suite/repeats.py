"""The repeats that a suite plans for every cell, and the two cells that a sequential design cannot do without."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from repro.core import pattern
from repro.suite.cell import Cell, Skipped
from repro.suite.matrix import Problem
from repro.suite.model import Suite


def planned_repeats(suite: Suite, cells: Sequence[Cell]) -> list[int]:
    """Return the most repeats of every cell: one that the primary contrast does not need stops at the first look."""
    if not suite.looks or suite.primary is None:
        return [suite.seeds] * len(cells)
    needed = (suite.primary.candidate, suite.primary.baseline)
    data = [cell.choices.model_dump(mode="json", by_alias=True) for cell in cells]
    return [suite.seeds if any(pattern.matches(item, wanted) for wanted in needed) else suite.looks[0]
            for item in data]


def require_primary(suite: Suite, cells: Sequence[Cell], skipped: Sequence[Skipped], problem: Problem) -> None:
    """Check that both cells which a sequential design judges can run on this machine.

    Raises:
        SuiteError: one cannot.
    """
    if not suite.looks or suite.primary is None:
        return
    data = [cell.choices.model_dump(mode="json", by_alias=True) for cell in cells]
    for name, wanted in (("candidate", suite.primary.candidate), ("baseline", suite.primary.baseline)):
        if not any(pattern.matches(item, wanted) for item in data):
            reasons = "; ".join(f"{item.label}: {item.reason}" for item in skipped[:3])
            raise problem("a sequential design needs both cells of the primary contrast, and this one cannot run here: "
                          f"{reasons}", ("primary", name))


def without_primary(suite: Suite) -> dict[str, Any]:
    """Return the changes of a suite that loses its primary contrast: nothing is left to stop for."""
    return {"primary": None} | ({"sequential": None, "seeds": suite.looks[0]} if suite.looks else {})
