"""Resuming an interrupted run: the trials that are missing, and the refusal if machine, code or plan differ."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from repro.core import door
from repro.core.errors import OutputError, ReproError, UsageError
from repro.core.machine import Machine
from repro.record.environment.differences import Difference
from repro.record.folder.ledger import end_of
from repro.record.folder.store import Record, RunFolder, read_plan
from repro.record.result.results import Result
from repro.record.result.status import meaning
from repro.suite.model import Trial
from repro.suite.planning.plan import Plan, expand_again, planned_order, wrong_order

SHOWN = 4
"""The number of differences that an error names."""


def reopen(root: Path) -> tuple[RunFolder, Plan]:
    """Open the folder of a run to be resumed, and read its plan.

    Raises:
        OutputError: it is no run folder, it holds a link, or its plan is damaged.
    """
    folder = RunFolder(root)
    if not folder.plan.is_file():
        found = "is not a run folder (it has no plan.json)" if root.is_dir() else "there is no such run folder"
        raise OutputError(f"{root}: {found}: there is nothing to resume; start a run with `repro run SUITE`")
    door.refuse_links(root)
    return folder, read_plan(folder.plan)


def plan_differences(plan: Plan, machine: Machine) -> list[Difference]:
    """List the differences of a run's plan from the plan that this code makes of its suite on this machine."""
    try:
        now = expand_again(plan, machine)
    except ReproError as error:
        return [Difference("plan", f"the suite can no longer be planned here: {error}")]
    if now.digest != plan.digest:
        return [Difference("plan", f"suite digest {plan.digest[:16]}, now {now.digest[:16]}")]
    then, here = {cell.cell_id for cell in plan.cells}, {cell.cell_id for cell in now.cells}
    found = [Difference("hardware", f"device {plan.device}, now {now.device}")] if plan.device != now.device else []
    if then - here or (then != here and plan.kind != "reproduction"):
        found.append(Difference("plan", f"{len(then - here)} of {len(then)} cells cannot run here, "
                                        f"{len(here - then)} others could"))
    elif text := _order_difference(plan, now):
        found.append(Difference("plan", text))
    return found


def _order_difference(plan: Plan, now: Plan) -> str:
    """Compare the trials of a plan and their order with those that its suite and seed give; "" if they are equal."""
    expected, chosen = list(planned_order(plan)), set(plan.order)
    if chosen != set(expected) or len(plan.order) != len(expected):
        return (f"plan.json: order has {len(plan.order)} trials, {len(chosen - set(expected))} of them not its "
                f"suite's, whose seeds: {plan.suite.seeds} gives {len(expected)}")
    return f"plan.json: {text}" if (text := wrong_order(plan, now)) else ""


def require_same(folder: Path, found: Sequence[Difference], force: bool, hint: str = "") -> None:
    """Refuse to resume a run if something differs and `--force` is not given.

    Args:
        hint: how to see all differences.

    Raises:
        UsageError: the differences, and how to resume in spite of them.
    """
    if found and not force:
        more = f" (and {len(found) - SHOWN} more)" if len(found) > SHOWN else ""
        texts = "; ".join(item.text for item in found[:SHOWN])
        raise UsageError(f"{folder}: cannot be resumed as the same run: {texts}{more}{hint}; to resume it in "
                         "spite of that, and have the report show it: --force")


def trials_to_run(record: Record, again: bool) -> list[Trial]:
    """List the trials of the plan that have to run, in its order; none after the end of a sequential run.

    Args:
        again: include those that crashed or hung, regardless of the suite.
    """
    results, end = {result.trial_id: result for result in record.results}, end_of(record.looks)
    planned = [trial for trial in record.plan.trials() if end is None or trial.repeat < end]
    return [trial for trial in planned if _has_to_run(record, results.get(trial.trial_id), again)]


def _has_to_run(record: Record, result: Result | None, again: bool) -> bool:
    if result is None:
        return True
    return meaning(result.status).reruns and (
        again or may_run_again(record.plan, failed_starts(record, result.trial_id)))


def failed_starts(record: Record, trial_id: str) -> int:
    """Count the starts of a trial that crashed or hung; starts that the end of the run interrupted do not count."""
    return sum(item.trial_id == trial_id and meaning(item.status).reruns for item in record.attempts)


def may_run_again(plan: Plan, failed: int) -> bool:
    """Return True if the suite allows another start of a trial that failed so often."""
    return plan.suite.on_failure in ("rerun", "resume_from_checkpoint") and failed < plan.suite.attempts


def began_elsewhere(record: Record) -> bool:
    """Return True if machine, code or record differed between two starts of this run."""
    return any(item.kind == "difference" for item in record.incidents)
