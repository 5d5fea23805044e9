"""What one run may be at most: as much as everything that reads its record can hold. Asked before anything is written.

A record that could be made and not be sealed, read back or verified would be a loss found out at the end of a night.
"""

from __future__ import annotations

import math

from repro.plan import Cell, Plan
from repro.seams import Workload
from repro.store import MAX_TRIALS

PLANNED_FILES = 50_000
"""Attempts that fail leave two logs each besides: an index takes 100,000 files, a bundle 65,000."""
MAX_EVALUATIONS = 20_000
"""Of one trial. With MAX_STEPS the largest log that `repro verify` derives a result from (`bundle.rederive`)."""
MAX_STEPS = 2_000_000
"""Of one trial."""
OF_A_TRIAL, OF_A_CELL = 4, 2
"""Files besides those of its ranks: trial, result, events and system log; at the parity gate, without the ranks' two
each."""


def too_large(plan: Plan) -> str:
    """Why a plan is more than one run can be, and what would do; "" where it is not."""
    if len(plan.order) > MAX_TRIALS:
        return f"{len(plan.order):,} trials are too many for one run, {MAX_TRIALS:,} are the most; {_instead()}"
    if (count := files(plan)) > PLANNED_FILES:
        return (f"{len(plan.order):,} trials would leave about {count:,} files, too many for one run "
                f"({PLANNED_FILES:,} are the most); {_instead()}")
    return next((why for cell in plan.cells if (why := _too_long(cell))), "")


def files(plan: Plan) -> int:
    """About how many files the record of a plan has, if every trial is started once."""
    ranks = [cell.choices.processes for cell in plan.cells]
    gate = sum(OF_A_CELL + 2 * count for count in ranks)
    return gate + sum(OF_A_TRIAL + ranks[index] for index, _ in plan.order)


def _too_long(cell: Cell) -> str:
    """By its budget: a trial that reaches its target early is shorter."""
    choices = cell.choices
    size = choices.batch.global_
    steps = math.ceil(choices.stop.max_epochs * choices.workload.get(Workload).train_samples / size)
    evaluations = math.ceil(steps / math.ceil(choices.evaluate_every / size))
    if steps > MAX_STEPS:
        return (f"{cell.label}: its budget of {choices.stop.max_epochs:g} epochs is {steps:,} steps, {MAX_STEPS:,} are "
                "the most of a trial; a smaller max_epochs or a larger batch would do")
    if evaluations > MAX_EVALUATIONS:
        return (f"{cell.label}: it would be evaluated {evaluations:,} times in its budget, {MAX_EVALUATIONS:,} are the "
                "most of a trial; a larger evaluate_every would do")
    return ""


def _instead() -> str:
    return "fewer seeds or levels would do, or several runs, which `repro compare` puts together"
