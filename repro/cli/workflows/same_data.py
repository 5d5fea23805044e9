"""Refusal of a run that would only repeat the data of an earlier one, because its suite states their master seed."""

from __future__ import annotations

import json
from pathlib import Path

from repro.core.errors import OutputError, UsageError
from repro.core.files import read_bounded
from repro.record.tuning import FOLDER
from repro.suite.planning.plan import Plan

LATEST = 200
"""Runs that are looked at, the latest first: a suite that states its master seed repeats its last run."""


def refuse_same_data(plan: Plan, runs: Path) -> None:
    """Refuse a plan whose experiment has a run with the same master seed in the folder `runs`; the plan of a tuning is
    compared with tunings.

    Raises:
        UsageError: there is one; says which, and how to draw new data.
    """
    below = f"{FOLDER}/" if plan.kind == "tuning" else ""
    earlier = sorted((path for path in runs.glob("*") if (path / f"{below}plan.json").is_file()),
                     key=lambda path: path.name[-15:], reverse=True)[:LATEST]
    if same := next((path for path in earlier if _has_data_of(path / f"{below}plan.json", plan)), None):
        raise UsageError(
            f"{same}: is a run of {plan.suite.suite!r} with master seed {plan.master_seed}, which the suite states: a "
            f"run now would draw the same data again; for new data: --master-seed with another number, or no "
            f"master_seed in the suite; to repeat it on purpose: --master-seed {plan.master_seed}")


def _has_data_of(path: Path, plan: Plan) -> bool:
    """Return whether a stored plan draws the same random numbers for the same experiment."""
    try:
        found = json.loads(read_bounded(path))
        return (found["kind"], found["digest"], found["suite"]["master_seed"]) == (
            plan.kind, plan.digest, plan.master_seed)
    except (OutputError, ValueError, LookupError, TypeError, RecursionError):
        return False  # no plan, or a damaged one, which `repro verify` reports
