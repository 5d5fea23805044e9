"""Modelled cost of a plan before it runs, from rough rates; never a result."""

from __future__ import annotations

from repro.core.frozen import Frozen
from repro.suite.plan import Plan

SETUP_SECONDS = 15.0
"""Fork server, parity gate, report, once a run, roughly."""


class Cost(Frozen):
    """Seconds that a plan takes if every trial uses its whole budget, roughly."""

    trials: int
    full_budget_seconds: float
    label: str = "modelled from rough rates of one CPU core; a busy machine or a slow engine takes longer"


def estimate(plan: Plan) -> Cost:
    """Return a plan's time if every trial uses its whole budget."""
    per_cell = [cell.choices.full_budget_seconds(plan.cores) for cell in plan.cells]
    total = sum(per_cell[index] for index, _ in plan.order)
    return Cost(trials=len(plan.order), full_budget_seconds=round(total + SETUP_SECONDS, 1))
