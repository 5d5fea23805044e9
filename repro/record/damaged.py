"""Results that a run cannot go on from: cut, altered, gone, or without their log. Such trials run again, and it shows.

What a run's folder says of a trial that had ended is its record. Where a disk or a hand has damaged it, neither the
figures nor their absence may pass for the trial's: the result is set aside, the ledger and the incidents say so, and
the trial is run again as the next attempt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from repro.core.errors import OutputError, UsageError
from repro.core.files import read_model
from repro.record import index as record_index
from repro.record.ledger import Attempt, read_attempts
from repro.record.post_mortem import damage
from repro.record.results import Result
from repro.record.resume import SHOWN
from repro.record.store import RunFolder
from repro.suite.model import Trial
from repro.suite.plan import Plan

WHOLE = ("ok", "missed")
"""Ends whose log goes from its first event to its last."""
ENDED = (*WHOLE, "diverged", "timed_out", "out_of_memory", "invalid")
"""Ends that stand: where the ledger has one there is a result."""
STATUS = "lost"
"""Of an attempt whose result is no longer there, in the ledger; the last line of an attempt counts."""
GONE, ALTERED = "is gone", "was altered since the run ended"
INCIDENTS = "incidents.jsonl"


@dataclass(frozen=True, slots=True)
class Lost:
    """A trial that had ended and is to run again."""

    trial_id: str
    attempt: int
    why: str
    """What is damaged, one phrase with the file's name."""


def find(folder: RunFolder, plan: Plan) -> list[Lost]:
    """Trials whose result can no longer be trusted, in the plan's order; reads only.

    Raises:
        OutputError: the ledger or the index itself is damaged.
    """
    path = folder.root / record_index.NAME
    index = record_index.read_sums(path) if path.exists() else {}
    attempts = read_attempts(folder.ledger)
    return [found for trial in plan.trials() if (found := _look(folder, trial, index, attempts)) is not None]


def _look(folder: RunFolder, trial: Trial, index: Mapping[str, str], attempts: Sequence[Attempt]) -> Lost | None:
    path = folder.result(trial.trial_id)
    mine = [item for item in attempts if item.trial_id == trial.trial_id]
    ended = max((item.attempt for item in mine if item.status in ENDED), default=None)
    if not path.exists():
        return None if ended is None else Lost(trial.trial_id, ended, f"{path.name} is gone")
    try:
        result = read_model(path, Result)
    except OutputError:
        number = ended if ended is not None else max((item.attempt for item in mine), default=1)
        return Lost(trial.trial_id, number, f"{path.name} is cut or damaged")
    why = _altered(folder, result, index) or _of_another(result, trial)
    if not why and result.status in WHOLE:
        log = folder.log(trial.trial_id, result.attempt)
        why = f"{log.name}: {problem}" if (problem := damage(log)) else ""
    return Lost(trial.trial_id, result.attempt, why) if why else None


def _altered(folder: RunFolder, result: Result, index: Mapping[str, str]) -> str:
    """Which of the files that a result consists of is not what it was when the run ended; "" where all are."""
    files = (folder.result(result.trial_id), folder.log(result.trial_id, result.attempt))
    for path in files:
        known = index.get(path.relative_to(folder.root).as_posix())
        if known is None:
            continue
        if not path.is_file():
            return f"{path.name} {GONE}"
        if record_index.file_sha256(path) != known:
            return f"{path.name} {ALTERED}"
    return ""


def _of_another(result: Result, trial: Trial) -> str:
    same = (result.trial_id, result.cell_id, result.repeat) == (trial.trial_id, trial.cell_id, trial.repeat)
    return "" if same else "result.json is the result of another trial"


def altered(folder: RunFolder, plan: Plan) -> list[str]:
    """How the record is not what it was when the run ended, a phrase a file; reads only.

    All of the index against all of the record: what is sealed anew without a word would pass for measured. Left out
    is the damage for which a trial runs again, which is told: its result, that one's log, and whatever of it is gone.

    Raises:
        OutputError: the index or one of the files cannot be read.
    """
    if not (folder.root / record_index.NAME).exists():
        return []
    index = record_index.read_sums(folder.root / record_index.NAME)
    found = dict(_unlike(folder.root, index))
    for item in _run_again(folder, plan, index) if found else ():
        own = {path.relative_to(folder.root).as_posix() for path in (
            folder.result(item.trial_id), folder.log(item.trial_id, item.attempt), aside(folder, item))}
        below = f"trials/{item.trial_id}/"
        found = {name: how for name, how in found.items()
                 if name not in own and not (how == GONE and name.startswith(below))}
    return [f"{name if name.isprintable() else ascii(name)[1:-1]} {how}" for name, how in sorted(found.items())]


def _unlike(root: Path, index: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """(name, how it differs) of every file on which the index and the record do not agree."""
    present = {item.name: item for item in record_index.members(root)}
    for name, known in index.items():
        member = present.get(name)
        path = member.path if member else root / name
        if member is None and ("/" in name or not path.is_file()):
            yield name, GONE
        elif (member and member.refusal) or record_index.file_sha256(path) != known:
            yield name, ALTERED
    for name in present.keys() - index.keys():
        # What cannot be in an index `verify` names, sealed anew or not; an old index has no incidents.
        if not present[name].refusal and name != INCIDENTS:
            yield name, "was added since the run ended"


def _run_again(folder: RunFolder, plan: Plan, index: Mapping[str, str]) -> list[Lost]:
    """What `find` names, and what a start that was killed had set aside while the index still stood."""
    try:
        found = find(folder, plan)
    except OutputError:  # the ledger is damaged: all that differs is named
        return []
    for trial in plan.trials():
        for path in folder.trial(trial.trial_id).glob("lost_*.json"):
            if path.relative_to(folder.root).as_posix() not in index and (number := _number(path)):
                found.append(Lost(trial.trial_id, number, "was set aside"))
    return found


def _number(path: Path) -> int:
    """The attempt whose result a file holds that was set aside; 0: none."""
    return int(path.stem[5:]) if path.stem[5:].isdecimal() else 0


def refuse(folder: RunFolder, plan: Plan, force: bool) -> list[str]:
    """What of the record was altered; nothing, or all of it where somebody insists.

    Raises:
        UsageError: something was, and nobody insists.
        OutputError: the index or one of the files cannot be read.
    """
    found = altered(folder, plan)
    if found and not force:
        more = f" (and {len(found) - SHOWN} more)" if len(found) > SHOWN else ""
        raise UsageError(f"{folder.root}: cannot be resumed as the same run: {'; '.join(found[:SHOWN])}{more} (`repro "
                         "verify` says all); --force goes on, and the report says so")
    return found


def set_aside(folder: RunFolder, lost: Sequence[Lost]) -> None:
    """Take the results away from where they would count; nothing is deleted.

    Only renames: whoever is killed in the middle finds the same state again, see `write_down`.

    Raises:
        OutputError: the folder cannot be written.
    """
    for item in lost:
        path = folder.result(item.trial_id)
        try:
            if path.exists():
                path.replace(aside(folder, item))
            else:
                aside(folder, item).touch()
        except OSError as error:
            raise OutputError(f"{path}: cannot be written: {error.strerror}") from error


def aside(folder: RunFolder, item: Lost) -> Path:
    """Where a damaged result goes."""
    return folder.trial(item.trial_id) / f"lost_{item.attempt}.json"


def write_down(folder: RunFolder, plan: Plan, lost: Sequence[Lost]) -> None:
    """A line in the ledger and an incident for every result that was set aside, now or by a start that was killed.

    Raises:
        OutputError: the folder cannot be written.
    """
    why = {(item.trial_id, item.attempt): item.why for item in lost}
    known = {(item.trial_id, item.attempt): item for item in read_attempts(folder.ledger)}
    for trial in plan.trials():
        for path in sorted(folder.trial(trial.trial_id).glob("lost_*.json")):
            number = _number(path)
            line = known.get((trial.trial_id, number))
            if not number or (line is not None and line.status == STATUS):
                continue
            text = why.get((trial.trial_id, number), "its result was damaged")
            if line is None:
                told = Attempt(trial_id=trial.trial_id, cell_id=trial.cell_id, repeat=trial.repeat, attempt=number,
                               started_ms=0, seconds=0, status=STATUS, reason=text)
            else:
                reason = f"{text}; it had ended as {line.status}"
                told = line.model_copy(update={"status": STATUS, "reason": reason})
            folder.append_incident(STATUS, f"attempt {number}: {told.reason}; the trial was run again",
                                   trial.trial_id)
            folder.append_attempt(told)


def settle(folder: RunFolder, plan: Plan) -> None:
    """The ledger's line for every result that a run wrote, and was ended before it could write the line.

    Raises:
        OutputError: the folder cannot be written.
    """
    known = {(item.trial_id, item.attempt): item for item in read_attempts(folder.ledger)}
    for trial in plan.trials():
        path = folder.result(trial.trial_id)
        result = read_model(path, Result) if path.is_file() else None
        line = known.get((trial.trial_id, result.attempt)) if result else None
        if result is None or line is None or line.status != "started":
            continue
        seconds = max(0.0, round(path.stat().st_mtime - line.started_ms / 1e3, 3))
        folder.append_attempt(line.model_copy(update={"status": result.status, "reason": result.reason,
                                                      "seconds": seconds}))
