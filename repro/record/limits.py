"""What one run may be at most: as much as everything that reads its record can hold. Asked before anything is written.

A record that could be made and not be sealed, read back or verified would be a loss found out at the end of a night.
What is certain to be too much is refused; what is so only where trials use most of their budget is a warning.
"""

from __future__ import annotations

import math

from repro.core.errors import UsageError
from repro.record.store import MAX_TRIALS
from repro.seams.training import Workload
from repro.suite.plan import Cell, Plan

PLANNED_FILES = 50_000
"""Attempts that fail leave two logs each besides: an index takes 100,000 files, a bundle 65,000."""
MAX_EVALUATIONS = 20_000
"""Of one trial. With MAX_STEPS the largest log that `repro verify` derives a result from (`bundle.rederive`)."""
MAX_STEPS = 2_000_000
"""Of one trial."""
OF_A_TRIAL, OF_A_CELL = 4, 2
"""Files besides those of its ranks: trial, result, events and system log; at the parity gate, without the ranks' two
each."""
STEP_BYTES, EVALUATION_BYTES = 80, 1_200
"""Of a log, roughly: two million steps and twenty thousand evaluations took 166 MB."""
BUNDLE_BYTES = 512 << 20
"""What a bundle holds."""


def refuse(plan: Plan) -> None:
    """Refuse a plan that is more than one run can be.

    Raises:
        UsageError: what is too much, and what would do.
    """
    if why := too_large(plan):
        raise UsageError(why)


def too_large(plan: Plan) -> str:
    """Why a plan is certainly more than one run can be, and what would do; "" where it is not."""
    instead = "fewer seeds or levels would do"
    if len(plan.order) > MAX_TRIALS:
        return f"{len(plan.order):,} trials are too many for one run, {MAX_TRIALS:,} are the most; {instead}"
    if (count := files(plan)) > PLANNED_FILES:
        return (f"{len(plan.order):,} trials would leave about {count:,} files, too many for one run "
                f"({PLANNED_FILES:,} are the most); {instead}")
    return next((why for cell in plan.cells if _uses_all(cell) and (why := _too_long(cell))), "")


def warnings(plan: Plan) -> list[str]:
    """What may become more than a record can hold, where trials use all of their budget."""
    found = [why for cell in plan.cells if not _uses_all(cell) and (why := _too_long(cell))][:1]
    seeds = {index: sum(place == index for place, _ in plan.order) for index in range(len(plan.cells))}
    size = sum(seeds[index] * _log_bytes(cell) for index, cell in enumerate(plan.cells))
    if size > BUNDLE_BYTES:
        found.append(f"logs of about {size / 1e6:,.0f} MB if every trial uses its whole budget: more than a bundle "
                     f"holds ({BUNDLE_BYTES >> 20} MiB)")
    return found


def files(plan: Plan) -> int:
    """About how many files the record of a plan has, if every trial is started once."""
    ranks = [1 if cell.choices.launcher.kind == "inline" else cell.choices.processes for cell in plan.cells]
    gate = sum(OF_A_CELL + 2 * count for count in ranks)
    return gate + sum(OF_A_TRIAL + ranks[index] for index, _ in plan.order)


def _uses_all(cell: Cell) -> bool:
    """Whether every trial of a cell goes to the end of its budget, whatever it reaches."""
    return cell.choices.stop.design == "fixed_budget"


def _steps(cell: Cell) -> int:
    choices = cell.choices
    samples: int = choices.workload.get(Workload).train_samples
    return math.ceil(choices.stop.max_epochs * samples / choices.batch.global_)


def _evaluations(cell: Cell) -> int:
    return math.ceil(_steps(cell) / math.ceil(cell.choices.evaluate_every / cell.choices.batch.global_))


def _log_bytes(cell: Cell) -> int:
    return STEP_BYTES * _steps(cell) + EVALUATION_BYTES * _evaluations(cell)


def _too_long(cell: Cell) -> str:
    epochs = f"{cell.label}: its budget of {cell.choices.stop.max_epochs:g} epochs"
    if (steps := _steps(cell)) > MAX_STEPS:
        return (f"{epochs} is {steps:,} steps, {MAX_STEPS:,} are the most that a record can show of a trial; a smaller "
                "max_epochs or a larger batch would do")
    if (count := _evaluations(cell)) > MAX_EVALUATIONS:
        return (f"{epochs} has {count:,} evaluations, {MAX_EVALUATIONS:,} are the most that a record can show of a "
                "trial; a larger evaluate_every would do")
    return ""
