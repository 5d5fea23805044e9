"""Data and services that the trials of a plan need and this machine does not have."""

from __future__ import annotations

from repro.seams.training import Workload
from repro.suite.planning.plan import Plan


def absent_data(plan: Plan) -> list[str]:
    """Return a line for each data set or service that is absent: what is missing and how to get it."""
    found = (choices.workload.get(Workload).absent() for choices in plan.trainings())
    return [*(text for text in dict.fromkeys(found) if text), *absent_services(plan)]


def absent_services(plan: Plan) -> list[str]:
    """Return a line for each service or room that a measurement needs and that is missing.

    Equal plug-ins are asked once: two looks at a disk may find different amounts of free space.
    """
    asked = {tuple(choice.model_dump_json() for choice in cell.choices.plugins()): cell.choices for cell in plan.cells}
    return [text for text in dict.fromkeys(choices.absent() for choices in asked.values()) if text]
