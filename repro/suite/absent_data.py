"""Data that the workloads of a plan need and this machine does not have."""

from __future__ import annotations

from repro.seams.training import Workload
from repro.suite.plan import Plan


def absent_data(plan: Plan) -> list[str]:
    """Return a line for each data set that is absent: what is missing and how to get it."""
    found = (choices.workload.get(Workload).absent() for choices in plan.trainings())
    return [text for text in dict.fromkeys(found) if text]
