"""Checks of the ledger: it lists every attempt, agrees with the results, and contradicts no limit or log."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from repro.bundle.verification import Problem, Verification
from repro.record.folder.ledger import Attempt
from repro.record.folder.resume import may_run_again
from repro.record.folder.store import RunFolder
from repro.record.result.results import Result
from repro.record.result.status import STARTED, meaning
from repro.suite.model import Trial
from repro.suite.planning.plan import Plan

LEDGER = "ledger.jsonl"
ROUNDED_SECONDS = 0.01
"""Largest rounding error of the seconds in the ledger."""


def check_ledger(plan: Plan, results: list[Result], attempts: list[Attempt], found: Verification) -> None:
    """Check the ledger against the results and the plan."""
    found.extend(_contradicted_results(results, attempts))
    found.extend(missing_attempts(attempts))
    found.extend(early_ends(plan, attempts))
    found.extend(_unknown_trials(plan, results, attempts))
    found.count("ledgers against results")


def _contradicted_results(results: list[Result], attempts: list[Attempt]) -> Iterator[Problem]:
    ends = {(item.trial_id, item.attempt): item for item in attempts}
    for result in results:
        line = ends.get((result.trial_id, result.attempt))
        if line is None:
            yield Problem(LEDGER, f"has no line for attempt {result.attempt} of {result.trial_id}, which has a result",
                          "ledger")
        elif line.status not in (result.status, STARTED):
            yield Problem(LEDGER, f"{result.trial_id} ended as {line.status!r}, but its result says {result.status!r}",
                          "ledger")


def _unknown_trials(plan: Plan, results: list[Result], attempts: list[Attempt]) -> Iterator[Problem]:
    planned = {trial.trial_id for trial in plan.trials()}
    for name in sorted({item.trial_id for item in attempts} - planned):
        yield Problem(LEDGER, f"names {name[:120]}, which is not in the plan", "ledger")
    cells = {cell.cell_id for cell in plan.cells}
    for name in sorted({item.cell_id for item in attempts} - cells):
        yield Problem(LEDGER, f"names the cell {name[:120]}, which is not in the plan", "ledger")
    without = planned - {result.trial_id for result in results}
    for item in attempts:
        if meaning(item.status).logged and item.trial_id in without:
            yield Problem(LEDGER, f"{item.trial_id} ended as {item.status!r} but has no result", "ledger")


def missing_attempts(attempts: Sequence[Attempt]) -> Iterator[Problem]:
    """Find gaps in the numbers of the attempts, which start at 1: a removed line leaves a gap."""
    numbers: dict[str, set[int]] = defaultdict(set)
    for item in attempts:
        numbers[item.trial_id].add(item.attempt)
    for trial_id, found in sorted(numbers.items()):
        if missing := sorted(set(range(1, max(found) + 1)) - found):
            yield Problem(LEDGER, f"has no line for attempt {missing[0]} of {trial_id[:120]}, but one for attempt "
                          f"{max(found)}", "ledger")


def early_ends(plan: Plan, attempts: Sequence[Attempt]) -> Iterator[Problem]:
    """Find attempts with a status of a limit whose seconds are below this limit.

    The seconds of an attempt that resumed from a checkpoint do not include those before the checkpoint, so they are
    not checked.
    """
    choices = {cell.cell_id: cell.choices for cell in plan.cells}
    for item in attempts:
        if item.cell_id not in choices or item.resumed_from:
            continue
        field = meaning(item.status).limit
        limit = getattr(choices[item.cell_id], field) if field else None
        if limit is not None and item.seconds < limit - ROUNDED_SECONDS:
            yield Problem(LEDGER, f"{item.trial_id[:120]} ended as {item.status!r} after {item.seconds:g} s, but its "
                          f"limit is {limit:g} s", "ledger")


def unlisted_logs(folder: RunFolder, trial: Trial, attempts: Sequence[Attempt]) -> Iterator[Problem]:
    """Find logs of attempts that the ledger does not list."""
    name = trial.trial_id
    known = {item.attempt for item in attempts if item.trial_id == name}
    place = folder.trial(name)
    for path in sorted(place.glob("result_*.txt")):
        number = path.stem.rpartition("_")[2]
        if number.isdecimal() and int(number) not in known:
            yield Problem(f"trials/{name}/{path.name}", "is the log of an attempt that the ledger does not "
                          "list", "ledger")


def count_unfinished(plan: Plan, results: Sequence[Result], attempts: Sequence[Attempt]) -> int:
    """Count the trials with a result that have not ended: a later attempt has started, or the suite requires one."""
    latest, failed = Counter[str](), Counter[str]()
    for item in attempts:
        if item.source:  # an attempt of another run, in a merged record
            continue
        latest[item.trial_id] = max(latest[item.trial_id], item.attempt)
        failed[item.trial_id] += meaning(item.status).reruns
    return sum(latest[item.trial_id] > item.attempt
               or (meaning(item.status).reruns and may_run_again(plan, failed[item.trial_id])) for item in results)
