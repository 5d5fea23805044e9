"""The trials of a run in their order: each is started as often as the suite allows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from repro.record.folder.resume import failed_starts, may_run_again
from repro.record.folder.store import Record
from repro.record.result.results import Result
from repro.record.result.status import meaning
from repro.runner.attempt import TrialStarter
from repro.runner.context import RunContext
from repro.runner.looks import Looks
from repro.runner.machine_watch import MachineWatch
from repro.runner.signals import raise_dropped
from repro.suite.model import Trial


@dataclass(frozen=True, slots=True)
class Trials:
    """Runs trials one after another."""

    context: RunContext
    starter: TrialStarter
    watch: MachineWatch
    strict: bool
    looks: Looks

    def run(self, record: Record, trials: Sequence[Trial]) -> None:
        """Run `trials`, the last ones of the plan; stop after a failure if the suite says so.

        Raises:
            GuardError: strict, and the clock was set or the machine throttled while a trial ran.
        """
        plan = self.context.plan
        self.watch.begin(plan.device)
        for number, trial in enumerate(trials, self._done(trials) + 1):
            raise_dropped()
            if self.looks.end_before(trial):
                return
            result = self._run_trial(record, trial, number)
            if plan.suite.on_failure == "stop" and meaning(result.status).failed:
                text = f"stopped after a trial that {meaning(result.status).words}, as the suite's on_failure says"
                self.context.warn("stopped", text, trial.trial_id)
                return
        self.looks.end_before(None)

    def _done(self, trials: Sequence[Trial]) -> int:
        """Return how many trials of the plan come before the first one to run."""
        if not trials:
            return 0
        if not self.looks.waiting:
            return len(self.context.plan.order) - len(trials)
        ids = [trial.trial_id for trial in self.context.plan.trials()]
        return ids.index(trials[0].trial_id)  # not the trials: plug-ins with a state are equal only to themselves

    def _run_trial(self, record: Record, trial: Trial, number: int) -> Result:
        """Start a trial until its result is final or no more starts are allowed."""
        plan = self.context.plan
        failed, attempt = failed_starts(record, trial.trial_id), record.next_attempt(trial.trial_id)
        while True:
            result = self._start(trial, attempt, number)
            if result is not None:
                failed += meaning(result.status).reruns
                if not meaning(result.status).reruns or not may_run_again(plan, failed):
                    return result
                text = f"attempt {attempt} {result.status} ({result.reason}); starting again"
                if plan.suite.keeps_checkpoints:
                    text += ", from its last checkpoint if there is one"
                self.context.warn("rerun", text, trial.trial_id)
            attempt += 1

    def _start(self, trial: Trial, attempt: int, number: int) -> Result | None:
        plan, watcher = self.context.plan, self.context.watcher
        cell = next(cell for cell in plan.cells if cell.cell_id == trial.cell_id)
        watcher.trial_started(number, self.looks.count(trial), trial, cell)
        begin = time.monotonic()
        result = self.starter.start(trial, attempt)
        if result is not None:
            watcher.trial_ended(result, time.monotonic() - begin)
            self.watch.check(self.context, trial.trial_id, self.strict)
            self.starter.replays.after_trial()
        return result
