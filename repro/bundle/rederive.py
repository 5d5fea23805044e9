"""result.json once more from its log: whoever changed one of the two shows."""

from __future__ import annotations

import json
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

from repro.bundle.consistency import another_trial
from repro.core.errors import OutputError
from repro.core.events import Event, complete_lines, parse_line
from repro.record import index, post_mortem
from repro.record.derive import derive, with_energy
from repro.record.result_warnings import upgrade_warnings
from repro.record.results import CONSERVATION_TOLERANCE, LogFault, Result
from repro.record.status import meaning
from repro.seams.launching import LaunchResult, RankCause, RankEnd
from repro.suite.model import Trial

LOG_FAULTS: dict[LogFault, str] = {
    "steps_missing": "step records cover another number of samples than the evaluations",
    "clock_backwards": "the clock went backwards between evaluations",
}
"""Faults that no unmodified log has, in words."""
NOT_IN_THE_LOG = ("network", "reason", "energy")
"""Fields that come from how the processes ended, which the log does not hold."""
BESIDE = {"network": None, "energy": None}
"""Taken beside the processes: also a trial that failed before its log began has them."""
"""Trials whose log may end, or be damaged, anywhere."""
LOST = "though every rank ended well"
"""How the reason of a trial ends that is called crashed because its log was damaged (`runner`)."""
MAX_LOG_BYTES = index.MAX_FILE_BYTES
"""What an index and a bundle take at most: four million steps take it."""
MAX_HELD_BYTES = 192 << 20
"""Of the events of a log in memory, as `_packed` estimates it: five million steps, or forty thousand evaluations."""
UNREAD = ("block_start", "block_stop", "eval_start", "eval_stop")
"""Events that no figure comes from."""
NUMBERS = ("x_steps", "x_rank_steps")
"""Events with a number for every step, kept as arrays: a list of them takes four times as much."""
UNFIT = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError, RecursionError)
"""What reading figures out of a log raises where the log is not one of ours."""


def differences(trial: Trial, stored: Result, log: Path) -> list[str]:
    """What `stored` says otherwise than its log, one phrase each; empty where it says the same.

    Raises:
        OutputError: the log cannot be read, or holds nothing that a result could come from.
    """
    if stored.model_copy(update=BESIDE) == _nothing(stored) and post_mortem.log_damage(log):
        return []  # it failed before its log began, or because that was damaged; no figure is taken from it
    again = rederived(trial, stored, log)
    if stored.energy is not None:
        again = with_energy(again, stored.energy)
    before, after = (json.loads(item.model_dump_json(by_alias=True)) for item in (upgrade_warnings(stored), again))
    names = [name for name in before if name not in NOT_IN_THE_LOG and not _equal(before[name], after[name])]
    return [_told(name, before[name], after[name]) for name in names]


def _nothing(stored: Result) -> Result:
    """A failure that says no more than that it was one."""
    status = "crashed" if meaning(stored.status).logged else stored.status
    return Result(trial_id=stored.trial_id, cell_id=stored.cell_id, repeat=stored.repeat, attempt=stored.attempt,
                  status=status, reason=stored.reason)


def rederived(trial: Trial, stored: Result, log: Path) -> Result:
    """The result that the log gives, for processes that ended as `stored` says.

    Raises:
        OutputError: as `differences`.
    """
    if stored.status == "crashed" and stored.reason.endswith(LOST) and post_mortem.log_damage(log):
        return Result(trial_id=trial.trial_id, cell_id=trial.cell_id, repeat=trial.repeat, attempt=stored.attempt,
                      status="crashed", reason=stored.reason)
    events = _events(log, not meaning(stored.status).logged)
    if strange := another_trial(trial, events):
        raise OutputError(f"{log}: {strange}")
    try:
        return derive(trial, stored.attempt, events, _outcome(stored, any(item.key == "run_stop" for item in events)))
    except UNFIT as error:
        # A log by a stranger: whatever does not fit is one and the same to the reader, a log that gives no result.
        detail = " ".join(str(error).split())[:120]
        raise OutputError(f"{log}: gives no result ({type(error).__name__}: {detail})") from error


def _events(log: Path, failed: bool) -> list[Event]:
    """Of complete lines. Where the trial did not fail a damaged one is an error here; `read_events` passes over it."""
    try:
        if log.is_symlink() or not log.is_file():
            raise OutputError(f"{log}: is missing, or no plain file")
        if (size := log.stat().st_size) > MAX_LOG_BYTES:
            raise OutputError(f"{log}: its {size >> 20:,} MiB are more than is read here ({MAX_LOG_BYTES >> 20} MiB): "
                              "its result was not derived from it again")
        return _compact(log, failed)
    except OSError as error:
        raise OutputError(f"{log}: cannot be read: {error.strerror}") from error


def _compact(log: Path, failed: bool) -> list[Event]:
    """Events with their numbers packed, as long as they are no more than memory is given for."""
    found: list[Event] = []
    held = 0
    for number, line in enumerate(complete_lines(log), 1):
        if ":::MLLOG" not in line:
            continue
        if (event := parse_line(line)) is None:
            if not failed:
                raise OutputError(f"{log}:{number}: a damaged line")
            continue
        if event.key in UNREAD:
            continue
        event, size = _packed(event, line)
        held += size
        if held > MAX_HELD_BYTES:
            raise OutputError(f"{log}:{number}: holds more events than there is memory given for: its result was not "
                              "derived from it again")
        found.append(event)
    return found


def _packed(event: Event, line: str) -> tuple[Event, int]:
    """An event with its times as arrays where it has one for every step, and about how many bytes it takes."""
    if event.key in NUMBERS and isinstance(event.value, dict):
        try:
            value = {name: array("d", item) for name, item in event.value.items() if name.endswith("seconds")}
        except (TypeError, ValueError, OverflowError):  # not ours: what reads it will say so
            pass
        else:
            return replace(event, value=value), 1024 + sum(8 * len(item) for item in value.values())
    text = len(line) * (1 if line.isascii() else 4)
    return event, 512 + text + 64 * sum(line.count(sign) for sign in ",:[{")


def _outcome(stored: Result, stopped: bool) -> LaunchResult | None:
    """An end of the processes that gives this status; None where the log alone does."""
    network = stored.network.model_dump(mode="json") if stored.network else None
    if meaning(stored.status).limit:
        return LaunchResult(
            (), 0.0, timed_out=stored.status == "timed_out", hung=stored.status == "hung", network=network)
    if stored.status in ("crashed", "out_of_memory"):
        cause: RankCause = "out_of_memory" if stored.status == "out_of_memory" else "failed"
        return LaunchResult((RankEnd(0, 1, cause=cause),), 0.0, network=network)
    return LaunchResult((RankEnd(0, 0),), 0.0, network=network) if stopped else None


def _equal(one: Any, other: Any) -> bool:
    """Figures to their last digits (JSON keeps all of them); a platform's own sum may round the last one."""
    if isinstance(one, bool) or isinstance(other, bool) or one is None or other is None:
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one == other or abs(one - other) <= 1e-12 * max(abs(one), abs(other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)


def _told(name: str, stored: Any, again: Any) -> str:
    if isinstance(stored, dict) and isinstance(again, dict):
        key = next(key for key in {**stored, **again} if not _equal(stored.get(key), again.get(key)))
        return f"{name}.{key} is {_short(stored.get(key))}, its log gives {_short(again.get(key))}"
    return f"{name} is {_short(stored)}, its log gives {_short(again)}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def unsound(result: Result) -> list[str]:
    """Conservation that does not hold (method.md 1.2), one sentence each."""
    found = []
    if result.conservation_error is not None and result.conservation_error > CONSERVATION_TOLERANCE:
        found.append(f"the phases explain the wall clock only to {result.conservation_error:.1%} "
                     f"(limit {CONSERVATION_TOLERANCE:.0%})")
    return [*found, *(LOG_FAULTS[fault] for fault in upgrade_warnings(result).log_faults)]
