"""The largest run that can be recorded: what every reader of a record can hold. Checked before anything is written.

Without this check, a run could end after a night with a record that cannot be sealed, read back or verified. A plan
that certainly exceeds a limit is an error; one that exceeds it only if trials use most of their budget is a warning.
"""

from __future__ import annotations

from repro.core.errors import UsageError
from repro.record.folder.store import MAX_TRIALS
from repro.suite.planning.cell import Cell
from repro.suite.planning.plan import Plan

PLANNED_FILES = 50_000
"""Attempts that fail leave two more logs each: an index takes 100,000 files, a bundle 65,000."""
MAX_EVALUATIONS = 20_000
"""Of one trial. With MAX_STEPS the largest log that `repro verify` derives a result from (`bundle.rederive`)."""
MAX_STEPS = 2_000_000
"""Of one trial."""
OF_A_TRIAL, OF_A_CELL = 4, 2
"""Files in addition to those of its ranks: trial, result, events and system log; at the parity gate, without the two of
every rank."""
STEP_BYTES, EVALUATION_BYTES = 80, 1_200
"""Of a log, roughly: two million steps and twenty thousand evaluations took 166 MB."""
BUNDLE_BYTES = 512 << 20
"""Files of a bundle."""


def check_size(plan: Plan) -> None:
    """Check that a plan fits into one run.

    Raises:
        UsageError: it does not; says what is too large and what would fit.
    """
    if why := too_large(plan):
        raise UsageError(why)


def too_large(plan: Plan) -> str:
    """Return why a plan certainly does not fit into one run, and what would; "" if it fits."""
    instead = "use fewer seeds or levels"
    if len(plan.order) > MAX_TRIALS:
        return f"{len(plan.order):,} trials are too many for one run ({MAX_TRIALS:,} at most); {instead}"
    if (count := files(plan)) > PLANNED_FILES:
        return (f"{len(plan.order):,} trials would leave about {count:,} files, too many for one run "
                f"({PLANNED_FILES:,} at most); {instead}")
    return next((why for cell in plan.cells if cell.choices.always_runs_full_budget and (why := _too_long(cell))), "")


def warnings(plan: Plan) -> list[str]:
    """Return what may exceed a record if trials use their whole budget."""
    found = [why for cell in plan.cells if not cell.choices.always_runs_full_budget and (why := _too_long(cell))][:1]
    seeds = {index: sum(place == index for place, _ in plan.order) for index in range(len(plan.cells))}
    size = sum(seeds[index] * _log_bytes(cell) for index, cell in enumerate(plan.cells))
    if size > BUNDLE_BYTES:
        found.append(f"logs of about {size / 1e6:,.0f} MB if every trial uses its whole budget: more than a bundle "
                     f"holds ({BUNDLE_BYTES >> 20} MiB)")
    return found


def files(plan: Plan) -> int:
    """Return about how many files the record of a plan has, if every trial is started once."""
    ranks = [cell.choices.rank_logs() for cell in plan.cells]
    gate = sum(cell.choices.gate_starts() * (OF_A_CELL + 2 * count)
               for cell, count in zip(plan.cells, ranks, strict=True))
    return gate + sum(OF_A_TRIAL + ranks[index] for index, _ in plan.order)


def _log_bytes(cell: Cell) -> int:
    size = cell.choices.log_size()
    return STEP_BYTES * size.steps + EVALUATION_BYTES * size.evaluations


def _too_long(cell: Cell) -> str:
    size = cell.choices.log_size()
    budget = f"{cell.label}: its budget of {size.budget}"
    if size.steps > MAX_STEPS:
        return (f"{budget} is {size.steps:,} steps; a record can show at most {MAX_STEPS:,} of a trial; use "
                f"{size.fewer_steps}")
    if size.evaluations > MAX_EVALUATIONS:
        return (f"{budget} has {size.evaluations:,} evaluations; a record can show at most {MAX_EVALUATIONS:,} of a "
                f"trial; use {size.fewer_evaluations}")
    return ""
