"""Going on with a run that was cut short: what is missing, and whether machine and code are still what they were."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from repro.core.errors import OutputError, ReproError, UsageError
from repro.core.files import read_model
from repro.core.machine import Machine
from repro.record.environment import Environment
from repro.record.results import RERUN, Result
from repro.record.store import Record, RunFolder, check_plan
from repro.suite.identity import METHOD
from repro.suite.model import Trial
from repro.suite.plan import Plan, make_plan

FACTS = ("repro_version", "python", "system", "cpu", "cores", "memory_bytes", "device", "devices", "commit", "dirty")
"""What of an environment bears on a figure; packages, settings, limits and data are compared one by one."""
OWN = "repro-harness"
SHOWN = 4
"""Things that an error names of a kind."""


def reopen(root: Path) -> tuple[RunFolder, Plan]:
    """The folder and the plan of a run to go on with.

    Raises:
        OutputError: it is no run folder, or its plan is damaged.
    """
    folder = RunFolder(root)
    if not folder.plan.is_file():
        raise OutputError(f"{root}: is no run folder (no plan.json in it): there is nothing to resume; `repro run "
                          "SUITE` begins one, with another --out or when this folder is gone")
    plan = read_model(folder.plan, Plan)
    check_plan(folder.plan, plan)
    return folder, plan


def other_plan(plan: Plan, machine: Machine) -> list[str]:
    """How the plan that this code makes of the same suite on this machine differs from the one of the run."""
    if plan.method != METHOD:
        return [f"method {plan.method}, now {METHOD}"]
    try:
        now = make_plan(plan.suite, machine, overridden=True)
    except ReproError as error:
        return [f"the suite cannot be planned here any more: {error}"]
    if now.digest != plan.digest:
        return [f"suite digest {plan.digest[:16]}, now {now.digest[:16]}"]
    then, here = {cell.cell_id for cell in plan.cells}, {cell.cell_id for cell in now.cells}
    found = [f"device {plan.device}, now {now.device}"] if plan.device != now.device else []
    if then - here or (then != here and plan.kind != "reproduction"):
        found.append(f"{len(then - here)} of {len(then)} cells cannot run here, {len(here - then)} others could")
    elif why := _other_order(plan, now):
        found.append(why)
    return found


def _other_order(plan: Plan, now: Plan) -> str:
    """How the trials that stand in a plan, and their order, are not those that its suite gives; "" where they are."""
    stands, asked = ([(one.cells[index].cell_id, repeat) for index, repeat in one.order] for one in (plan, now))
    chosen = set(stands)
    if plan.kind == "reproduction":
        asked = [item for item in asked if item in chosen]
    if stands == asked:
        return ""
    if chosen != set(asked) or len(stands) != len(asked):
        return (f"plan.json: order has {len(stands)} trials, {len(chosen - set(asked))} of them not its suite's, whose "
                f"seeds: {plan.suite.seeds} gives {len(asked)}")
    return "plan.json: order is not the one that its suite gives"


def differences(then: Environment, now: Environment) -> list[str]:
    """Machine facts that matter to figures and are not what they were, a phrase each."""
    return list(_differences(then, now))


def _differences(then: Environment, now: Environment) -> Iterator[str]:
    for name in FACTS:
        old, new = getattr(then, name), getattr(now, name)
        if old != new:
            yield f"{name.replace('_', ' ')} {_shown(old)}, now {_shown(new)}"
    if then.diff_sha256 and now.diff_sha256 and then.diff_sha256 != now.diff_sha256:
        yield f"uncommitted changes {then.diff_sha256[:12]}, now {now.diff_sha256[:12]}"
    tables = [("library", then.libraries, now.libraries), ("setting", then.settings, now.settings)]
    if "limits" in then.model_fields_set:  # a record from before there were any does not say
        tables.append(("limit", then.limits, now.limits))
    for what, olds, news in tables:
        for name in sorted({*olds, *news}):
            if olds.get(name) != news.get(name):
                yield f"{what} {name} {_shown(olds.get(name))}, now {_shown(news.get(name))}"
    yield from _packages(then, now)
    hashes = {item.workload: item.sha256 for item in now.data}
    for item in then.data:
        if hashes.get(item.workload) != item.sha256:
            yield f"data of {item.workload} {item.sha256[:12]}, now {_shown(hashes.get(item.workload))[:12]}"


def _packages(then: Environment, now: Environment) -> Iterator[str]:
    """One phrase for all that was installed, taken away or replaced, where both say; libraries are told by name.

    The harness itself is told by its version and commit: whether it is found as a package depends on the folder that
    it is called from.
    """
    told = {re.sub(r"[-_.]+", "-", name).lower() for name in (*then.libraries, *now.libraries, OWN)}
    olds, news = ({re.sub(r"[-_.]+", "-", name).lower(): number for name, _, number in
                   (text.partition("==") for text in item.packages)} for item in (then, now))
    if not olds or not news:
        return
    found = [f"{name} {_shown(olds.get(name))}, now {_shown(news.get(name))}"
             for name in sorted({*olds, *news} - told) if olds.get(name) != news.get(name)]
    if found:
        more = f" (and {len(found) - SHOWN} more)" if len(found) > SHOWN else ""
        yield f"package{'s' if len(found) > 1 else ''} {'; '.join(found[:SHOWN])}{more}"


def _shown(value: object) -> str:
    return "unknown" if value is None else str(value)


def refuse(folder: Path, found: list[str], force: bool) -> None:
    """Raise where something differs and nobody insists.

    Raises:
        UsageError: what differs, and how to go on all the same.
    """
    if found and not force:
        more = f" (and {len(found) - SHOWN} more)" if len(found) > SHOWN else ""
        raise UsageError(f"{folder}: cannot be resumed as the same run: {'; '.join(found[:SHOWN])}{more}; --force goes "
                         "on, and the report says so")


def to_do(record: Record, again: bool) -> list[Trial]:
    """The trials of the plan that have to run, in its order.

    Args:
        again: also those that crashed or hung, whatever the suite says.
    """
    results = {result.trial_id: result for result in record.results}
    return [trial for trial in record.plan.trials() if _wanted(record, results.get(trial.trial_id), again)]


def _wanted(record: Record, result: Result | None, again: bool) -> bool:
    if result is None:
        return True
    return result.status in RERUN and (again or may_run_again(record.plan, failures(record, result.trial_id)))


def failures(record: Record, trial_id: str) -> int:
    """Starts of a trial that crashed or hung; those that the run's own end cut short are not held against it."""
    return sum(item.trial_id == trial_id and item.status in RERUN for item in record.attempts)


def may_run_again(plan: Plan, failed: int) -> bool:
    """Whether the suite wants a trial that failed so often to be started once more."""
    return plan.suite.on_failure in ("rerun", "resume_from_checkpoint") and failed < plan.suite.attempts
