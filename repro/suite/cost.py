"""What a plan may cost, before it runs: modelled from rough rates, never a result."""

from __future__ import annotations

from repro.seams.training import Engine, Workload
from repro.suite.model import Frozen
from repro.suite.plan import Cell, Plan

LAUNCH_SECONDS = 0.7
"""Starting and ending the processes of one trial, roughly."""
SETUP_SECONDS = 15.0
"""Fork server, parity gate, report, once a run, roughly."""


class Cost(Frozen):
    """Seconds that a plan takes if every trial uses its whole budget, roughly."""

    trials: int
    full_budget_seconds: float
    label: str = "modelled from rough rates of one CPU core; a busy machine or a slow engine takes longer"


def estimate(plan: Plan) -> Cost:
    """A plan's time if every trial runs to its budget."""
    per_cell = {cell.cell_id: _trial_seconds(cell, plan.cores) for cell in plan.cells}
    total = sum(per_cell[plan.cells[index].cell_id] for index, _ in plan.order)
    return Cost(trials=len(plan.order), full_budget_seconds=round(total + SETUP_SECONDS, 1))


def _trial_seconds(cell: Cell, cores: int) -> float:
    choices = cell.choices
    workload, engine = choices.workload.get(Workload), choices.engine.get(Engine)
    if not engine.needs_parts:
        return 0.05
    parallel = min(choices.processes, cores)
    samples = choices.stop.max_epochs * workload.train_samples
    return LAUNCH_SECONDS + samples / (workload.reference_samples_per_second * parallel)
