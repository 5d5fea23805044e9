"""One start of one trial: its line in the ledger, its ranks under the monitor, its result."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from repro.core import door
from repro.core.errors import OutputError, ReproError, interrupter
from repro.core.events import EventLog
from repro.core.files import read_model, write_model
from repro.record.derive.derive import damaged_log, derive, with_energy
from repro.record.folder.checkpoint import Checkpoints, Resumption
from repro.record.folder.ledger import WASH_OUT, Attempt, read_attempts
from repro.record.folder.store import Record
from repro.record.hopeless import HopelessRule
from repro.record.log.reading import follow_log, log_damage, read_log
from repro.record.log.schema import Evaluation, RunStart, SystemSample
from repro.record.result.parts import Energy
from repro.record.result.reasons import OutOfTime, Reason
from repro.record.result.remarks import stated
from repro.record.result.results import Result
from repro.record.result.status import INTERRUPTED, NOT_LAUNCHED, REFUSED, STARTED, WASHED_OUT, meaning
from repro.runner.context import RunContext
from repro.runner.energy_meter import EnergyMeter
from repro.runner.launching import Launchers, entry_of
from repro.runner.node_history import NodeHistory
from repro.runner.program_gate import gated
from repro.runner.signals import DeferredInterrupt
from repro.runner.tracking import Replays
from repro.seams.launching import LaunchResult
from repro.suite.model import Trial


@dataclass(frozen=True, slots=True)
class TrialCheckpoints:
    """The checkpoints of one trial, as its starts use them."""

    context: RunContext
    trial: Trial

    @property
    def stored(self) -> Checkpoints:
        return Checkpoints(self.context.folder.checkpoints(self.trial.trial_id))

    @property
    def wanted(self) -> bool:
        """True if the suite requires checkpoints and the engine can write them."""
        return self.context.plan.suite.keeps_checkpoints and not self.trial.choices.why_no_checkpoints()

    def newest(self, nodes: Sequence[str]) -> tuple[Resumption | None, tuple[str, ...]]:
        """Find the checkpoint to resume from (None: start from the beginning) and why newer ones were passed over.

        Args:
            nodes: places of this start; no trial is measured half there and half elsewhere.

        Raises:
            OutputError: a checkpoint of another place cannot be removed, or the ledger cannot be read.
        """
        if not self.wanted:
            return None, ()
        last = next((item.nodes for item in reversed(read_attempts(self.context.folder.ledger))
                     if item.nodes and item.trial_id == self.trial.trial_id), nodes)
        if last != nodes:
            self.remove_foreign("of another place")
        self.stored.tidy()
        point, passed = self.stored.newest(self.trial.trial_id, self.trial.choices.processes)
        for text in passed:
            self.context.warn("checkpoint", text, self.trial.trial_id)
        return point, tuple(passed)

    def remove_foreign(self, whose: str) -> None:
        """Remove the checkpoints, so that the trial starts from the beginning.

        Raises:
            OutputError: one cannot be removed.
        """
        names = self.stored.names()
        self.stored.remove()
        if left := self.stored.names():
            raise OutputError(f"{self.stored.root / left[0]}: may be {whose}, and cannot be removed")
        if names:
            self.context.warn("checkpoint", f"{names[0]} may be {whose}: the trial starts from the beginning",
                              self.trial.trial_id)

    def payload(self, point: Resumption | None) -> dict[str, Any] | None:
        """Return the checkpoint settings for the ranks; None: they write none."""
        if not self.wanted:
            return None
        return {
            "folder": self.stored.root.name, "every": self.context.plan.suite.checkpoint_every,
            "resume": point.path.name if point else None, "shift_ns": point.shift_ns if point else 0,
            "clock": point.clock if point else "monotonic",
        }


def spent_seconds(trial: Trial, point: Resumption | None) -> float:
    """Return how much of its time limit a trial has used before it is resumed; 0 on a simulated clock."""
    if point is None or trial.choices.origin == "simulated":
        return 0.0
    return max(0.0, point.spent_seconds())


def remove_useless(context: RunContext, record: Record, trials: Sequence[Trial], elsewhere: bool) -> None:
    """Remove the checkpoints that no trial may be resumed from.

    Args:
        trials: the trials to run.
        elsewhere: machine or code differ, or differed at an earlier start, from those the run began with. No trial is
            measured half there and half here, so all trials to run start from the beginning.

    Raises:
        OutputError: a checkpoint of another machine cannot be removed.
    """
    for trial in trials if elsewhere else ():
        TrialCheckpoints(context, trial).remove_foreign("of another machine or other code")
    waiting = {trial.trial_id for trial in trials}
    for result in record.results:
        # A run that was killed right after it wrote a result could not remove the trial's checkpoints.
        if result.trial_id not in waiting and not meaning(result.status).reruns:
            Checkpoints(context.folder.checkpoints(result.trial_id)).remove()


PERIOD_SECONDS = 1.0
Tick = Callable[[float | None, float, float | None], None]


class Monitor:
    """A thread that wakes once a second while a trial runs; it never blocks and never busy-waits."""

    def __init__(self, log: Path, system_log: Path, tick: Tick, live: Callable[[], None]) -> None:
        """Prepare to watch.

        Args:
            log: events of rank 0, read as they are written.
            system_log: receives system metrics.
            tick: called with (last value, epochs, samples per second) of the newest evaluation.
            live: called every second.
        """
        self._log, self._system_log, self._tick, self._live = log, system_log, tick, live
        self.unwritten = ""
        """Reason why system metrics are no longer written; "" if they are."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="repro-monitor", daemon=True)

    def __enter__(self) -> Monitor:
        try:
            self._thread.start()
        except BaseException:  # a signal while the thread starts: it would never be stopped
            self._stop.set()
            with suppress(RuntimeError):  # not started
                self._thread.join()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        try:
            self._thread.join()
        except BaseException:  # a signal during the wait: the thread must not write into a sealed run
            self._thread.join()
            raise

    def _watch(self) -> None:
        psutil.cpu_percent()  # the first call only sets the starting point
        system: EventLog | None = None
        offset = 0
        start_ns: int | None = None
        while not self._stop.wait(PERIOD_SECONDS):
            if not self.unwritten:
                system = self._sample(system)
            latest = None
            for recorded, after in follow_log(self._log, offset):
                offset = after
                if recorded is not None and isinstance(recorded.event, RunStart):
                    start_ns = recorded.at_ns
                elif recorded is not None and isinstance(recorded.event, Evaluation) and recorded.at_ns is not None:
                    latest = (recorded.event, recorded.at_ns)
            if latest is not None and start_ns is not None:
                evaluation, at_ns = latest
                seconds = (at_ns - start_ns) / 1e9
                self._tick(evaluation.value, evaluation.epoch_num,
                           evaluation.samples_count / seconds if seconds else None)
            self._live()
        if system is not None:
            try:
                system.close()
            except OSError as error:
                system.abandon()
                self.unwritten = error.strerror or type(error).__name__

    def _sample(self, system: EventLog | None) -> EventLog | None:
        """Write a line of system metrics; a full disk ends them, not the trial."""
        try:
            system = system or EventLog(self._system_log)
            memory = psutil.virtual_memory()
            system.write(SystemSample(  # under the names that MLflow uses
                cpu_utilization_percentage=psutil.cpu_percent(), system_memory_usage_percentage=memory.percent,
                system_memory_usage_megabytes=round(memory.used / 1e6, 1)))
            system.flush()
        except OSError as error:
            if system is not None:
                system.abandon()
            self.unwritten = error.strerror or type(error).__name__
            return None
        return system


@dataclass(frozen=True, slots=True)
class Start:
    """A start of a trial, from which the lines of the ledger are made."""

    trial: Trial
    attempt: int
    point: Resumption | None
    """The checkpoint that it is resumed from; None: from the beginning."""
    passed_over: tuple[str, ...]
    nodes: tuple[str, ...] = ()
    """Names of the places that it runs on."""
    started_ms: int = field(default_factory=lambda: round(time.time() * 1e3))
    monotonic: float = field(default_factory=time.monotonic)

    def line(self, status: str, reasons: tuple[Reason, ...]) -> Attempt:
        """Return the line of the ledger for this status."""
        point = self.point
        return Attempt(
            trial_id=self.trial.trial_id, cell_id=self.trial.cell_id, repeat=self.trial.repeat, attempt=self.attempt,
            started_ms=self.started_ms, seconds=round(time.monotonic() - self.monotonic, 3), status=status,
            reasons=reasons, passed_over=self.passed_over, nodes=self.nodes,
            resumed_from=f"{point.path.name} of attempt {point.checkpoint.attempt}" if point else "",
        )


@dataclass(frozen=True, slots=True)
class TrialStarter:
    """Starts trials, one at a time."""

    context: RunContext
    launchers: Launchers
    nodes: NodeHistory
    replays: Replays
    meter: EnergyMeter | None
    rule: HopelessRule | None
    """Of a tuning that abandons hopeless trials."""

    def start(self, trial: Trial, attempt: int) -> Result | None:
        """Start a trial once and store its result.

        Returns:
            The result; None if a rank refused the checkpoint to resume from. That checkpoint is set aside, so that the
            next start takes an older one or none.

        Raises:
            KeyboardInterrupt: a signal ended the run; what is known of this start is stored.
            ReproError: the trial could not be launched; the ledger says so.
        """
        folder = self.context.folder
        folder.trial(trial.trial_id).mkdir(parents=True, exist_ok=True)
        write_model(folder.trial_file(trial.trial_id), trial)
        checkpoints = TrialCheckpoints(self.context, trial)
        with self._ended_in_ledger(Start(trial, attempt, None, ())):
            nodes = self.nodes.gather(trial)
        start = Start(trial, attempt, *checkpoints.newest(nodes), nodes)
        with self._ended_in_ledger(start):
            # Before the launch: if this process is killed, the ledger still has the start.
            folder.append_attempt(start.line(STARTED, stated("the run ended before this attempt did")))
            if self.meter is not None:
                self.meter.start()
            outcome = self._launch(start, checkpoints)
        interrupt, used = DeferredInterrupt(), None
        with interrupt.deferred():
            used = self.meter.stop() if self.meter is not None else None
        if self._set_refused_aside(start, outcome, checkpoints):
            interrupt.deliver()
            return None
        # A signal must not cost the result of a trial that has ended: only the trials after it are not run.
        result = interrupt.complete(lambda: self._store(start, outcome, used))
        if not meaning(result.status).reruns:
            checkpoints.stored.remove()
        interrupt.deliver()
        return result

    def wash_out(self, trial: Trial) -> None:
        """Start a trial unmeasured: the ledger lists it, and nothing else is kept.

        Raises:
            KeyboardInterrupt: a signal ended the run.
            ReproError: it could not be launched.
        """
        start = Start(trial, WASH_OUT, None, (), self.nodes.gather(trial))
        place = self.context.folder.cache / WASHED_OUT
        append = self.context.folder.append_attempt
        append(start.line(WASHED_OUT, stated("the run ended before this did")))
        try:
            outcome = self.launchers.launch(trial, entry_of(trial.choices), place,
                                            self._payload(start, "log.txt", None))
        finally:
            shutil.rmtree(place, ignore_errors=True)
        first = outcome.first_failure
        failed = "" if outcome.ok else f"failed{f': {first.reason}' if first else ''}"
        append(start.line(WASHED_OUT, stated(failed) if failed else ()))
        if failed:
            self.context.warn("wash_out", f"the unmeasured trial before this one {failed}", trial.trial_id)

    @contextmanager
    def _ended_in_ledger(self, start: Start) -> Iterator[None]:
        """Write the end of a start into the ledger if a signal or an error ends the context."""
        append = self.context.folder.append_attempt
        try:
            yield
        except KeyboardInterrupt as error:
            append(start.line(INTERRUPTED, stated(interrupter(error))))
            raise
        except ReproError as error:
            append(start.line(NOT_LAUNCHED, stated(str(error))))
            raise

    def _launch(self, start: Start, checkpoints: TrialCheckpoints) -> LaunchResult:
        trial, point, folder = start.trial, start.point, self.context.folder
        log, spent = folder.log(trial.trial_id, start.attempt), spent_seconds(trial, point)
        if point is not None and spent >= trial.choices.timeout_seconds:
            with suppress(OSError):  # the log up to the checkpoint is all that is known of this trial
                log.write_bytes(point.log())
            return LaunchResult((), spent, timed_out=True)  # no rank is launched
        try:
            door.open_plain(log, "ab").close()  # also a trial that fails before its first event has a log
        except OSError as error:
            raise OutputError(f"{log}: cannot be written: {error.strerror}") from error
        system_log = folder.system_log(trial.trial_id, start.attempt)
        with Monitor(log, system_log, self.context.watcher.trial_ticked, self.replays.request):
            outcome = self.launchers.launch(
                trial, entry_of(trial.choices), folder.trial(trial.trial_id),
                self._payload(start, log.name, checkpoints.payload(point)) | {"bar": self._bar(trial)})
        return replace(outcome, seconds=outcome.seconds + spent) if outcome.timed_out else outcome

    def _payload(self, start: Start, log: str, checkpoints: dict[str, Any] | None) -> dict[str, Any]:
        folder = self.context.folder
        return {
            "log": log, "attempt": start.attempt, "checkpoints": checkpoints,
            "spent_seconds": spent_seconds(start.trial, start.point), "cache": str(folder.cache),
            "base": str(folder.root.resolve() / base) if (base := self.context.plan.base) else "",
            "code": str(folder.code), "bar": None, "gated": gated(self.context, start.trial),
        }

    def _bar(self, trial: Trial) -> dict[str, Any] | None:
        """Return the bar below which a tuning trial is abandoned (JSON-like); None: it has none."""
        if self.rule is None:
            return None
        paths = map(self.context.folder.result, self.rule.earlier(trial))
        found = self.rule.bar(trial, [read_model(path, Result) for path in paths if path.is_file()])
        return None if found is None else found.model_dump(mode="json")

    def _set_refused_aside(self, start: Start, outcome: LaunchResult, checkpoints: TrialCheckpoints) -> bool:
        """Set the checkpoint that a rank refused aside, if any.

        If it cannot be moved, every start would refuse it: this one then counts as crashed.
        """
        refusal = outcome.refused_checkpoint
        if start.point is None or not refusal or not checkpoints.stored.set_aside(start.point.path.name):
            return False
        self.context.folder.append_attempt(start.line(REFUSED, stated(refusal)))
        self.context.warn("checkpoint", refusal, start.trial.trial_id)
        return True

    def _store(self, start: Start, outcome: LaunchResult, used: Energy | None) -> Result:
        """Derive the result and write it into its file and the ledger; may be called twice."""
        result = _result(start, outcome, self.context.folder.log(start.trial.trial_id, start.attempt))
        if used is not None:
            result = with_energy(result, used)
        elif self.meter is not None:
            problem = self.meter.problem or "was interrupted"
            self.context.warn("energy", f"the energy of this trial is unknown: the tracker {problem}",
                              start.trial.trial_id)
        write_model(self.context.folder.result(start.trial.trial_id), result)
        self.context.folder.append_attempt(start.line(result.status, result.reasons))
        return result


def _result(start: Start, outcome: LaunchResult, log: Path) -> Result:
    trial = start.trial
    if outcome.ok and (damage := log_damage(log)):
        return damaged_log(trial, start.attempt, damage)
    result = derive(trial, start.attempt, read_log(log, skip_malformed=True), outcome)
    if outcome.timed_out and not outcome.ends:
        return result.model_copy(update={"reasons": (
            OutOfTime(seconds=outcome.seconds, limit_seconds=trial.choices.timeout_seconds),)})
    return result
