"""Resuming an interrupted run: the trials to run, refusal if machine, code, plan or record differ, damaged results.

Neither the figures of a damaged result (truncated, modified, missing, or without its log) nor their absence may count
as the trial's. The result is set aside, ledger and incidents record it, and the trial runs again as the next attempt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from repro.core import door
from repro.core.errors import OutputError, ReproError, UsageError
from repro.core.files import read_model, write_model
from repro.core.machine import Machine
from repro.record.environment.differences import Difference
from repro.record.folder import index as record_index
from repro.record.folder.ledger import Attempt, end_of, read_attempts
from repro.record.folder.store import Record, RunFolder, read_plan
from repro.record.log.reading import log_damage
from repro.record.result.remarks import stated
from repro.record.result.results import Result
from repro.record.result.status import LOST, STARTED, meaning
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

    All that `--force` relaxes comes here: the plan, by `plan_differences`; machine, libraries, code, settings and data,
    by `repro.runner.preflight.check`; modified files, by `require_unmodified`.

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
    found = []
    for trial in record.plan.trials():
        if end is not None and trial.repeat >= end:
            continue
        result = results.get(trial.trial_id)
        if result is None or (meaning(result.status).reruns and (
                again or may_run_again(record.plan, failed_starts(record, trial.trial_id)))):
            found.append(trial)
    return found


def failed_starts(record: Record, trial_id: str) -> int:
    """Count the starts of a trial that crashed or hung; starts that the end of the run interrupted do not count."""
    return sum(item.trial_id == trial_id and meaning(item.status).reruns for item in record.attempts)


def may_run_again(plan: Plan, failed: int) -> bool:
    """Return True if the suite allows another start of a trial that failed so often."""
    return plan.suite.on_failure in ("rerun", "resume_from_checkpoint") and failed < plan.suite.attempts


def began_elsewhere(record: Record) -> bool:
    """Return True if machine, code or record differed between two starts of this run."""
    return any(item.kind == "difference" for item in record.incidents)


MISSING, MODIFIED = "is missing", "was modified since the run ended"
ALTERED = {"missing": MISSING, "modified": MODIFIED, "added": "was added since the run ended"}


@dataclass(frozen=True, slots=True)
class Damaged:
    """A trial that had ended and whose result is damaged: it has to run again."""

    trial_id: str
    attempt: int
    why: str
    """The damage, with the file's name."""


def find(folder: RunFolder, plan: Plan) -> list[Damaged]:
    """List trials whose result is damaged, in the plan's order; reads only.

    Raises:
        OutputError: the ledger or the index itself is damaged.
    """
    path = folder.root / record_index.NAME
    index = record_index.read_sums(path) if path.exists() else {}
    attempts = read_attempts(folder.ledger)
    return [found for trial in plan.trials() if (found := _look(folder, trial, index, attempts)) is not None]


def _look(folder: RunFolder, trial: Trial, index: Mapping[str, str], attempts: Sequence[Attempt]) -> Damaged | None:
    path = folder.result(trial.trial_id)
    mine = [item for item in attempts if item.trial_id == trial.trial_id]
    ended = max((item.attempt for item in mine if meaning(item.status).stands), default=None)
    if not path.exists():
        return None if ended is None else Damaged(trial.trial_id, ended, f"{path.name} is missing")
    try:
        result = read_model(path, Result)
    except OutputError:
        number = ended if ended is not None else max((item.attempt for item in mine), default=1)
        return Damaged(trial.trial_id, number, f"{path.name} is truncated or damaged")
    another = "" if result.is_of(trial) else f"{path.name} is the result of another trial"
    why = _modified(folder, result, index) or another
    if not why and meaning(result.status).completed:
        log = folder.log(trial.trial_id, result.attempt)
        why = f"{log.name}: {found.damage}" if (found := log_damage(log)) else ""
    return Damaged(trial.trial_id, result.attempt, why) if why else None


def _modified(folder: RunFolder, result: Result, index: Mapping[str, str]) -> str:
    """Name the first file of a result that was modified since the run ended; "" if none was."""
    for path in (folder.result(result.trial_id), folder.log(result.trial_id, result.attempt)):
        name = path.relative_to(folder.root).as_posix()
        present = {name: record_index.Member(name, str(path))} if path.is_file() else {}
        for _, how in record_index.alterations(present, {name: index[name]}) if name in index else ():
            return f"{path.name} {ALTERED[how]}"
    return ""


def modifications(folder: RunFolder, plan: Plan) -> list[Difference]:
    """List the files of the record that were modified, added or removed since the run ended; reads only.

    The whole index is compared with the whole record: a modified file in a new index would pass for measured.
    Not listed is the damage for which a trial runs again, because an incident records it: its result, the log of that
    result, and its missing files.

    Raises:
        OutputError: the index or one of the files cannot be read.
    """
    if not (folder.root / record_index.NAME).exists():
        return []
    index = record_index.read_sums(folder.root / record_index.NAME)
    present = record_index.present_members(folder.root, index)
    # `verify` names files that cannot be in an index, sealed again or not.
    found = {name: ALTERED[how] for name, how in record_index.alterations(present, index)
             if how != "added" or not present[name].refusal}
    for item in _run_again(folder, plan, index) if found else ():
        own = {path.relative_to(folder.root).as_posix() for path in (
            folder.result(item.trial_id), folder.log(item.trial_id, item.attempt), aside_path(folder, item))}
        below = f"trials/{item.trial_id}/"
        found = {name: how for name, how in found.items()
                 if name not in own and not (how == MISSING and name.startswith(below))}
    return [Difference("record", f"{name if name.isprintable() else ascii(name)[1:-1]} {how}")
            for name, how in sorted(found.items())]


def _run_again(folder: RunFolder, plan: Plan, index: Mapping[str, str]) -> list[Damaged]:
    """List what `find` names, and what a killed start had set aside before it removed the index."""
    try:
        found = find(folder, plan)
    except OutputError:  # the ledger is damaged: every modified file is listed
        return []
    for trial in plan.trials():
        for number, path in _set_aside(folder, trial):
            if path.relative_to(folder.root).as_posix() not in index:
                found.append(Damaged(trial.trial_id, number, "was set aside"))
    return found


def _set_aside(folder: RunFolder, trial: Trial) -> list[tuple[int, Path]]:
    """Return (attempt, file) of the results of a trial that were set aside."""
    paths = sorted(folder.trial(trial.trial_id).glob("lost_*.json"))
    return [(number, path) for path in paths if path.stem[5:].isdecimal() and (number := int(path.stem[5:]))]


def require_unmodified(folder: RunFolder, plan: Plan, force: bool) -> list[Difference]:
    """Refuse a record that was modified since the run ended, unless `--force` is given; list the modifications.

    Raises:
        UsageError: a file was modified, and `force` is False.
        OutputError: the index or one of the files cannot be read.
    """
    found = modifications(folder, plan)
    require_same(folder.root, found, force, hint=" (`repro verify` lists all)")
    return found


def set_aside(folder: RunFolder, found: Sequence[Damaged]) -> None:
    """Rename damaged results, so that they no longer count; nothing is deleted.

    A start that is killed in between leaves a state that the next start can finish, see `record_set_aside`.

    Raises:
        OutputError: the folder cannot be written.
    """
    for item in found:
        path, aside = folder.result(item.trial_id), aside_path(folder, item)
        try:
            if path.exists():
                path.replace(aside)
            else:
                aside.parent.mkdir(parents=True, exist_ok=True)  # it may have been deleted as a whole
                aside.touch()
        except OSError as error:
            raise OutputError(f"{aside}: cannot be written: {error.strerror}") from error


def aside_path(folder: RunFolder, item: Damaged) -> Path:
    """Return the file that a damaged result is renamed to."""
    return folder.trial(item.trial_id) / f"lost_{item.attempt}.json"


def record_set_aside(folder: RunFolder, plan: Plan, found: Sequence[Damaged]) -> None:
    """Append a ledger line and an incident for every result that was set aside, now or by a start that was killed.

    Raises:
        OutputError: the folder cannot be written.
    """
    why = {(item.trial_id, item.attempt): item.why for item in found}
    known = {(item.trial_id, item.attempt): item for item in read_attempts(folder.ledger)}
    for trial in plan.trials():
        for number, _ in _set_aside(folder, trial):
            line = known.get((trial.trial_id, number))
            if line is not None and line.status == LOST:
                continue
            text = why.get((trial.trial_id, number), "its result was damaged")
            if line is None:
                entry = Attempt(trial_id=trial.trial_id, cell_id=trial.cell_id, repeat=trial.repeat, attempt=number,
                                started_ms=0, seconds=0, status=LOST, reasons=stated(text))
            else:
                reasons = stated(f"{text}; it had ended as {line.status}")
                entry = line.model_copy(update={"status": LOST, "reasons": reasons})
            folder.append_incident(LOST, f"attempt {number}: {entry.reason}; the trial was run again", trial.trial_id)
            folder.append_attempt(entry)


def describe_again(folder: RunFolder, plan: Plan) -> None:
    """Write the description of every trial that has lost it: the plan has it.

    Raises:
        OutputError: the folder cannot be written.
    """
    for trial in plan.trials():
        path = folder.trial_file(trial.trial_id)
        if path.parent.is_dir() and not path.exists():
            write_model(path, trial)


def complete_ledger(folder: RunFolder, plan: Plan) -> None:
    """Append the ledger line of every result that a killed run had written without its line.

    Raises:
        OutputError: the folder cannot be written.
    """
    known = {(item.trial_id, item.attempt): item for item in read_attempts(folder.ledger)}
    for trial in plan.trials():
        path = folder.result(trial.trial_id)
        result = read_model(path, Result) if path.is_file() else None
        line = known.get((trial.trial_id, result.attempt)) if result else None
        if line is not None and line.status == STARTED:
            folder.append_attempt(as_it_ended(folder, line, result))


def as_it_ended(folder: RunFolder, start: Attempt, result: Result | None) -> Attempt:
    """Return a start with the end that its result states, if a killed run wrote the result without it."""
    if result is None or start.status != STARTED:
        return start
    # Of a clock that was set, or another machine's, the moment of the file may be too early.
    written = folder.result(start.trial_id).stat().st_mtime
    seconds = round(max(written - start.started_ms / 1e3, result.run_seconds or 0.0), 3)
    return start.model_copy(update={"status": result.status, "reasons": result.reasons, "seconds": seconds})
