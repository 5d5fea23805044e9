"""Data that the workloads of a plan need and this machine does not have."""

from __future__ import annotations

from repro.seams.training import Engine, Workload
from repro.suite.plan import Plan


def absent_data(plan: Plan) -> list[str]:
    """Return a line for each data set that is absent: what is missing and how to get it."""
    found = (cell.choices.workload.get(Workload).absent() for cell in plan.cells
             if cell.choices.engine.get(Engine).needs_parts)
    return [text for text in dict.fromkeys(found) if text]
