"""Checks of the trials: each result follows from its log, conserves time and samples, and pairs with its seed."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from repro.bundle.verify_files import UNFIT, Verification, checked_model, without_place
from repro.bundle.verify_plan import this_code
from repro.compare import PAIRED_HASHES
from repro.core.errors import OutputError
from repro.core.files import read_bounded
from repro.core.frozen import canonical, canonical_text
from repro.record.derive.derive import UNREAD, damaged_log, derive, with_energy
from repro.record.derive.trial_log import find_crossing
from repro.record.folder import index
from repro.record.folder.store import Gate, RunFolder
from repro.record.log.event import LogEvent, count_packed
from repro.record.log.reading import WHOLE_LOG, Recorded, log_damage, read_lines
from repro.record.log.schema import ResumedFrom, RunStop, TrialStated
from repro.record.result.results import Result
from repro.record.result.status import meaning
from repro.seams.launching import LaunchResult, RankCause, RankEnd
from repro.suite.kinds.program import ProgramConfig
from repro.suite.kinds.training import TrainingConfig
from repro.suite.model import Trial
from repro.suite.planning.plan import Plan

HASHES_DEPEND_ON = ("workload", "batch", "precision")
"""The choices that the hashes of one seed may depend on, besides the seed."""


def verified_result(folder: RunFolder, trial: Trial, code: str, found: Verification) -> Result | None:
    """Check the files of one trial: its description, its result, and the log that the result follows from.

    Returns:
        The result, if there is one that belongs to this trial.
    """
    name = trial.trial_id
    directory = folder.trial(name)
    if not directory.exists() or all(path.match(".*.tmp") for path in directory.iterdir()):
        return None  # not started, or ended before its description was written
    place = f"trials/{name}"
    if _is_json(folder.trial_file(name), wanted := canonical(trial)):
        found.count("files by their schema")
    else:
        description = checked_model(folder.trial_file(name), Trial, folder.root, found)
        if description is not None and canonical(description) != wanted:
            found.add(f"{place}/trial.json", "describes another trial than the plan", "plan")
    if not folder.result(name).exists():
        return None
    result = checked_model(folder.result(name), Result, folder.root, found)
    if result is None:
        return None
    if not result.is_of(trial):
        found.add(f"{place}/result.json", "is the result of another trial", "result")
        return None
    _check_figures(folder, trial, result, code, found)
    return result


def _is_json(path: Path, text: str) -> bool:
    """Return whether a file holds a model of this `canonical` text: then it need not be read as one, which costs more.
    """
    try:
        return canonical_text(json.loads(read_bounded(path))) == text
    except (OutputError, ValueError, RecursionError):
        return False


def _check_figures(folder: RunFolder, trial: Trial, result: Result, code: str, found: Verification) -> None:
    """Derive the result from its log again and compare; check conservation of time and samples."""
    log, place = folder.log(trial.trial_id, result.attempt), f"trials/{trial.trial_id}/result.json"
    log_place = log.relative_to(folder.root).as_posix()
    if not log.exists():
        found.add(log_place, "is missing: every start has a log", "missing")
        return
    try:
        wrong = differences(trial, result, log)
    except OutputError as error:
        found.add(log_place, without_place(log_place, folder.root, error), "result")
        return
    found.count("results derived from their log again")
    if wrong:
        _report_differences(place, wrong, code, found)
    if further := _beyond_target(trial, result):
        found.add(place, further, "result")
    for fault in result.log_faults:
        found.add(place, fault.words, "conservation")
    found.count("conservation of time and samples")


def _beyond_target(trial: Trial, result: Result) -> str:
    """Return how a trial contradicts the evaluation that met its target, in words: it went on, or says that it missed
    the target; "" if it does not."""
    stop = trial.choices.stop
    if not isinstance(trial.choices, TrainingConfig) or stop.design != "stop_at_target":
        return ""
    crossing = find_crossing(result.curve, stop)
    if crossing is None:
        return ""
    met, last = result.curve[crossing[1]].samples, result.curve[-1].samples
    if met == last:
        return (f"the evaluation after {met} samples met the target, and the trial says that it {result.status}"
                if result.status in ("missed", "abandoned") else "")
    return f"the evaluation after {met} samples met the target, and the trial went on to {last}: stop_at_target ends it"


def _report_differences(place: str, wrong: Mapping[str, str], code: str, found: Verification) -> None:
    """Report a result that its log does not give: either was modified, or other code derived the result.

    The two cases cannot be distinguished here, so a different figure is a problem in both. Other warnings or reasons
    may come from another version and are a note.
    """
    text = "; ".join([*wrong.values()][:3]) + (f"; {len(wrong) - 3} more fields" if len(wrong) > 3 else "")
    if code == this_code():
        found.add(place, text, "result")
    elif wrong.keys() <= {"warnings", "reasons"}:
        found.notes.append(f"{place}: {text}; made by {code}, which may warn of other things")
    else:
        found.add(place, f"{text} (modified, or derived by other rules: made by {code})", "result")


def check_pairing(plan: Plan, results: Sequence[Result], found: Verification) -> None:
    """Check that one seed gives the same initial weights, order and data in all cells with one workload and batch."""
    cells = {plan.trial(cell, 0).cell_id: cell for cell in plan.cells}
    seen: dict[tuple[str, str, int], tuple[str, str]] = {}
    for result in results:
        if result.status != "ok":
            continue
        choices = cells[result.cell_id].choices
        data = choices.model_dump(mode="json", by_alias=True, include=set(HASHES_DEPEND_ON))
        data["batch"] = choices.global_batch
        group = json.dumps(data, sort_keys=True)
        streamed = isinstance(choices, TrainingConfig) and choices.input.order == "stream"
        for name in PAIRED_HASHES:
            value = result.hashes.get(name)
            if value is None or (streamed and name == "data_order"):  # no seed decides the data's own order
                continue
            first, where = seen.setdefault((name, group, result.repeat), (value, result.trial_id))
            found.count("hashes of pairs")
            if first != value:
                found.add(f"trials/{result.trial_id}/result.json", f"{name.replace('_', ' ')} of seed {result.repeat} "
                          f"differ from those of {where}: the two are not a pair", "pairing")


def check_gated(gate: Gate | None, plan: Plan, results: Sequence[Result], found: Verification) -> None:
    """Check that the gate's verdict has passed the files of every program whose trial says that it was gated."""
    passed = gate.programs if gate else ()
    programs = {cell.cell_id: cell.choices.engine.sha256 for cell in plan.cells
                if isinstance(cell.choices, ProgramConfig)}
    for result in results:
        if not result.effective.get("gated"):
            continue
        found.count("programs that say they were gated")
        if (result.cell_id, programs.get(result.cell_id)) not in passed:
            found.add(f"trials/{result.trial_id}/result.json", "says that the parity gate had passed this program with "
                      "these files, which parity.json does not", "result")


NOT_IN_THE_LOG = ("network", "energy")
"""Fields measured outside the processes, which the log does not hold: a trial that failed before it has them too."""
LATER = ("curve_in_steps",)
"""Fields that the first records of version 1.0.0rc1 lack: without it, positions count as numbers of evaluations."""
MAX_LOG_BYTES = index.MAX_FILE_BYTES
"""The limit of an index and of a bundle; reached after about four million steps."""
MAX_HELD_BYTES = 192 << 20
"""Limit of the events of a log in memory, as `_size` estimates them: four million steps or 40,000 evaluations."""


def differences(trial: Trial, stored: Result, log: Path) -> dict[str, str]:
    """Return the fields in which `stored` differs from what its log gives: name -> both values in words.

    Raises:
        OutputError: the log cannot be read, or gives no result.
    """
    if _has_no_figures(stored) and log_damage(log):
        return {}  # failed before its log began or because the log was damaged
    again = rederived(trial, stored, log)
    if stored.energy is not None:
        again = with_energy(again, stored.energy)
    texts = [item.model_dump_json(by_alias=True) for item in (stored, again)]
    if texts[0] == texts[1]:
        return {}
    before, after = map(json.loads, texts)
    outside = NOT_IN_THE_LOG if meaning(stored.status).logged or stored.log_damaged else (*NOT_IN_THE_LOG, "reasons")
    names = [name for name in before if name not in outside and not _equal(before[name], after[name])
             and (name not in LATER or name in stored.model_fields_set)]
    return {name: _phrase(name, before[name], after[name]) for name in names}


def _has_no_figures(stored: Result) -> bool:
    """Return whether it is a failure without any figure from its log."""
    if meaning(stored.status).logged:
        return False
    return stored.model_copy(update=dict.fromkeys(NOT_IN_THE_LOG)) == Result(**{
        name: getattr(stored, name) for name in ("trial_id", "cell_id", "repeat", "attempt", "status", "reasons")})


def rederived(trial: Trial, stored: Result, log: Path) -> Result:
    """Derive the result from the log, for processes that ended as `stored` says.

    Raises:
        OutputError: as `differences`.
    """
    if stored.log_damaged and (damage := log_damage(log)):
        return damaged_log(trial, stored.attempt, damage)
    events = _events(log, not meaning(stored.status).logged)
    if strange := _other_trial(trial, events, not meaning(stored.status).logged):
        raise OutputError(f"{log}: {strange}")
    try:
        stopped = any(isinstance(item.event, RunStop) for item in events)
        return derive(trial, stored.attempt, events, _launch_result(stored, stopped))
    except UNFIT as error:
        # A foreign log may hold anything; every error means that it gives no result.
        detail = " ".join(str(error).split())[:120]
        raise OutputError(f"{log}: gives no result ({type(error).__name__}: {detail})") from error


def _other_trial(trial: Trial, events: Sequence[Recorded], failed: bool) -> str:
    """Return how the log describes another trial than this one, or ""; only that of a trial that failed may end before
    it describes one.
    """
    described = next((item.event.value for item in events if isinstance(item.event, TrialStated)), None)
    if described is None:
        return "" if failed else "does not state the trial that it is of"
    ours = trial.model_dump(mode="json", by_alias=True)
    for name in ("suite_digest", "repeat", "master_seed", "choices", "side"):
        if described.get(name, "") != ours[name]:
            said = json.dumps(described.get(name))
            shown = said if len(said) <= 40 else "not this trial's"
            return f"is the log of another trial: its {name.replace('_', ' ')} is {shown}"
    return ""


def _events(log: Path, failed: bool) -> list[Recorded]:
    """Read the events of complete lines, up to MAX_HELD_BYTES. A damaged line is an error unless the trial failed."""
    found: list[Recorded] = []
    held, clocks, first, last = 0, _Clocks(), "", ""
    try:
        if log.is_symlink() or not log.is_file():
            raise OutputError(f"{log}: is missing or not a regular file")
        if (size := log.stat().st_size) > MAX_LOG_BYTES:
            raise OutputError(f"{log}: {size >> 20:,} MiB exceed the limit of {MAX_LOG_BYTES >> 20} MiB; its result "
                              "was not derived again")
        for number, (line, recorded, problem) in enumerate(read_lines(log), 1):
            if problem and ":::MLLOG" in line and not failed:
                raise OutputError(f"{log}:{number}: {problem}")
            if recorded is not None:
                clocks.take(number, recorded)
                last = recorded.event.key
                first = first or last
            if recorded is None or isinstance(recorded.event, UNREAD):
                continue
            held += _size(recorded.event, line)
            if held > MAX_HELD_BYTES:
                raise OutputError(f"{log}:{number}: holds more events than fit into {MAX_HELD_BYTES >> 20} MiB; its "
                                  "result was not derived again")
            found.append(recorded)
        if not failed and (first, last) != WHOLE_LOG:
            raise OutputError(f"{log}: is incomplete: it begins with {first[:80]!r} and ends with {last[:80]!r}")
        if line_number := clocks.contradiction():
            raise OutputError(f"{log}:{line_number}: the wall clock and the monotonic clock of this event, which are "
                              "written from one reading, are further apart than those of the event before")
    except OSError as error:
        raise OutputError(f"{log}: cannot be read: {error.strerror}") from error
    return found


CLOCKS_MS = 0.01
"""Largest rounding error of the difference of the two times of an event."""


class _Clocks:
    """The difference of the two times of the events of a log, which changes only where another process goes on."""

    def __init__(self) -> None:
        self._offset: float | None = None
        self._changed: list[int] = []
        self._resumed = 0

    def take(self, number: int, recorded: Recorded) -> None:
        """Take the event of a line."""
        self._resumed += isinstance(recorded.event, ResumedFrom)
        if recorded.at_ns is None:
            return
        offset = recorded.time_ms - recorded.at_ns / 1e6
        if self._offset is not None and abs(offset - self._offset) > CLOCKS_MS:
            self._changed.append(number)
        self._offset = offset

    def contradiction(self) -> int | None:
        """Return the line of the first change that no resumption explains; None: there is none."""
        return self._changed[0] if len(self._changed) > self._resumed else None


def _size(event: object, line: str) -> int:
    """Return the approximate size of an event in memory, bytes."""
    if isinstance(event, LogEvent) and (numbers := count_packed(event)):
        return 1024 + 8 * numbers
    text = len(line) * (1 if line.isascii() else 4)
    return 512 + text + 64 * sum(line.count(sign) for sign in ",:[{")


def _launch_result(stored: Result, stopped: bool) -> LaunchResult | None:
    """Return an end of the processes that gives this status; None if the log alone gives it."""
    network = stored.network.model_dump(mode="json") if stored.network else None
    if meaning(stored.status).limit:
        return LaunchResult(
            (), 0.0, timed_out=stored.status == "timed_out", hung=stored.status == "hung", network=network)
    if stored.status in ("crashed", "out_of_memory"):
        cause: RankCause = "out_of_memory" if stored.status == "out_of_memory" else "failed"
        return LaunchResult((RankEnd(0, 1, cause=cause),), 0.0, network=network)
    return LaunchResult((RankEnd(0, 0),), 0.0, network=network) if stopped else None


def _equal(one: Any, other: Any) -> bool:
    """Compare figures to their last digits but one: platforms may round a sum differently."""
    if isinstance(one, bool) or isinstance(other, bool) or one is None or other is None:
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=1e-12)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)


def _phrase(name: str, stored: Any, again: Any) -> str:
    if isinstance(stored, dict) and isinstance(again, dict):
        key = next(key for key in {**stored, **again} if not _equal(stored.get(key), again.get(key)))
        return f"{name}.{key} is {_short(stored.get(key))}, its log gives {_short(again.get(key))}"
    return f"{name} is {_short(stored)}, its log gives {_short(again)}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
