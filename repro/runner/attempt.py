"""One start of one trial: its line in the ledger, its ranks under the monitor, its result."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from repro.core.errors import ReproError, interrupter
from repro.core.files import read_model, write_model
from repro.record.derive.derive import damaged_log, derive, with_energy
from repro.record.folder.checkpoint import Resumption
from repro.record.folder.ledger import Attempt
from repro.record.log.reading import log_damage, read_log
from repro.record.result.parts import Energy
from repro.record.result.remarks import OutOfTime, Reason, stated
from repro.record.result.results import Result
from repro.record.result.status import INTERRUPTED, NOT_LAUNCHED, REFUSED, STARTED, meaning
from repro.record.tuning import HopelessRule
from repro.runner.checkpoints import TrialCheckpoints, spent_seconds
from repro.runner.context import RunContext
from repro.runner.energy_meter import EnergyMeter
from repro.runner.launching import Launchers, entry_of
from repro.runner.monitor import Monitor
from repro.runner.replays import Replays
from repro.runner.signals import DeferredInterrupt
from repro.seams.launching import LaunchResult
from repro.suite.model import Trial


@dataclass(frozen=True, slots=True)
class Start:
    """A start of a trial, from which the lines of the ledger are made."""

    trial: Trial
    attempt: int
    started_ms: int
    monotonic: float
    point: Resumption | None
    """The checkpoint that it is resumed from; None: from the beginning."""
    passed_over: tuple[str, ...]

    @classmethod
    def now(cls, trial: Trial, attempt: int, point: Resumption | None, passed_over: tuple[str, ...]) -> Start:
        return cls(trial, attempt, round(time.time() * 1e3), time.monotonic(), point, passed_over)

    def line(self, status: str, reasons: tuple[Reason, ...]) -> Attempt:
        """Return the line of the ledger for this status."""
        point = self.point
        return Attempt(
            trial_id=self.trial.trial_id, cell_id=self.trial.cell_id, repeat=self.trial.repeat, attempt=self.attempt,
            started_ms=self.started_ms, seconds=round(time.monotonic() - self.monotonic, 3), status=status,
            reasons=reasons, passed_over=self.passed_over,
            resumed_from=f"{point.path.name} of attempt {point.checkpoint.attempt}" if point else "",
        )


@dataclass(frozen=True, slots=True)
class TrialStarter:
    """Starts trials, one at a time."""

    context: RunContext
    launchers: Launchers
    replays: Replays
    meter: EnergyMeter | None
    rule: HopelessRule | None = None
    """Of a tuning that abandons hopeless trials."""

    def start(self, trial: Trial, attempt: int) -> Result | None:
        """Start a trial once and store its result.

        Returns:
            The result; None if a rank refused the checkpoint to resume from. That checkpoint is removed, so that the
            next start takes an older one or none.

        Raises:
            KeyboardInterrupt: a signal ended the run; what is known of this start is stored.
            ReproError: the trial could not be launched; the ledger says so.
        """
        folder = self.context.folder
        folder.trial(trial.trial_id).mkdir(parents=True, exist_ok=True)
        write_model(folder.trial_file(trial.trial_id), trial)
        checkpoints = TrialCheckpoints(self.context, trial)
        start = Start.now(trial, attempt, *checkpoints.newest())
        outcome = self._run_ranks(start, checkpoints)
        interrupt, used = DeferredInterrupt(), None
        with interrupt.deferred():
            used = self.meter.stop() if self.meter is not None else None
        if self._remove_refused(start, outcome, checkpoints):
            interrupt.deliver()
            return None
        # A signal must not cost the result of a trial that has ended: only the trials after it are not run.
        result = interrupt.complete(lambda: self._store(start, outcome, used))
        if not meaning(result.status).reruns:
            checkpoints.stored.remove()
        interrupt.deliver()
        return result

    def _run_ranks(self, start: Start, checkpoints: TrialCheckpoints) -> LaunchResult:
        """Write the start into the ledger, launch the ranks and wait for their end."""
        append = self.context.folder.append_attempt
        try:
            # Before the launch: if this process is killed, the ledger still has the start.
            append(start.line(STARTED, stated("the run ended before this attempt did")))
            if self.meter is not None:
                self.meter.start()
            return self._launch(start, checkpoints)
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
            return _out_of_time(point, log, spent)
        system_log = folder.system_log(trial.trial_id, start.attempt)
        with Monitor(log, system_log, self.context.watcher.trial_ticked, self.replays.while_running):
            outcome = self.launchers.launch(trial, entry_of(trial.choices), folder.trial(trial.trial_id), {
                "log": log.name, "attempt": start.attempt, "checkpoints": checkpoints.payload(point),
                "spent_seconds": spent, "cache": str(folder.cache),
                "base": str(folder.root.resolve() / base) if (base := self.context.plan.base) else "",
                "code": str(folder.code), "bar": self._bar(trial),
            })
        return replace(outcome, seconds=outcome.seconds + spent) if outcome.timed_out else outcome

    def _bar(self, trial: Trial) -> dict[str, Any] | None:
        """Return the bar below which a tuning trial is abandoned (JSON-like); None: it has none."""
        if self.rule is None:
            return None
        paths = map(self.context.folder.result, self.rule.earlier(trial))
        found = self.rule.bar(trial, [read_model(path, Result) for path in paths if path.is_file()])
        return None if found is None else found.model_dump(mode="json")

    def _remove_refused(self, start: Start, outcome: LaunchResult, checkpoints: TrialCheckpoints) -> bool:
        """Remove the checkpoint that a rank refused, if any.

        If it cannot be removed, every start would refuse it: this one then counts as crashed.
        """
        refusal = outcome.refused_checkpoint
        if start.point is None or not refusal or not checkpoints.stored.remove_refused(start.point.path.name):
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


def _out_of_time(point: Resumption, log: Path, spent: float) -> LaunchResult:
    """Return the end of a start for which nothing is left of the time limit: no rank is launched."""
    with suppress(OSError):  # the log up to the checkpoint is all that is known of this trial
        log.write_bytes(point.log())
    return LaunchResult((), spent, timed_out=True)


def _result(start: Start, outcome: LaunchResult, log: Path) -> Result:
    trial = start.trial
    if outcome.ok and (damage := log_damage(log)):
        return damaged_log(trial, start.attempt, damage)
    result = derive(trial, start.attempt, read_log(log, skip_malformed=True), outcome)
    if outcome.timed_out and not outcome.ends:
        return result.model_copy(update={"reasons": (
            OutOfTime(seconds=outcome.seconds, limit_seconds=trial.choices.timeout_seconds),)})
    return result
