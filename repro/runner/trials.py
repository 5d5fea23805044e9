"""The trials of a run in their order: each is started as often as the suite allows."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from repro.compare.design.sequential import TakenLook, stages, take_look
from repro.compare.evidence.stage import Stage
from repro.record.folder.ledger import Look, append_line
from repro.record.folder.resume import failed_starts, may_run_again
from repro.record.folder.store import Record, read_record
from repro.record.result.reasons import RankFailed
from repro.record.result.results import Result
from repro.record.result.status import meaning
from repro.runner.attempt import TrialStarter
from repro.runner.context import RunContext
from repro.runner.machine_watch import MachineWatch
from repro.runner.signals import raise_dropped
from repro.runner.tracking import TRIAL_SECONDS
from repro.suite.model import Trial
from repro.suite.planning.cell import Cell
from repro.suite.planning.plan import Plan, washed_out


@dataclass(slots=True)
class Looks:
    """Decides before every trial whether the run goes on."""

    context: RunContext
    waiting: list[Stage]
    """Looks that have not been taken, the next one first."""
    budget_seconds: float | None = None
    begun: float = field(default_factory=time.monotonic)
    first_repeat: int = 0
    """Repeat of the first trial of this execution."""
    is_settled: Callable[[int], bool] | None = None
    """Tells after the trials of some repeats whether the run ends, for a run that is judged against another record."""
    reached: int = 0
    """Repeats after which that was asked."""

    @classmethod
    def of(
        cls, context: RunContext, taken: Sequence[Look], trials: Sequence[Trial], budget_seconds: float | None,
        is_settled: Callable[[int], bool] | None = None,
    ) -> Looks:
        """Return the looks that this execution takes: those after its first trial, and those not taken before it."""
        if not context.plan.design.looks:
            return cls(context, [], is_settled=is_settled)
        first = trials[0].repeat if trials else context.plan.design.repeats
        known = {look.number for look in taken if look.decision != "failed" and look.n <= first}
        waiting = [stage for stage in stages(context.plan) if stage.number not in known]
        return cls(context, waiting, budget_seconds, first_repeat=first)

    def end_before(self, trial: Trial | None) -> bool:
        """Take the looks that are due before a trial; return True if it does not run.

        Args:
            trial: None: all trials have run.
        """
        while self.waiting and (trial is None or self.waiting[0].n <= trial.repeat):
            taken = self._take(self.waiting.pop(0))
            if taken is None:
                return False  # a trial before it is missing: the suite stopped, or it was chosen not to run again
            if taken.ends:
                return True
            if trial is not None and self._is_spent(taken):
                return True
        if self.is_settled is not None and trial is not None and trial.repeat > self.reached:
            self.reached = trial.repeat
            return self.is_settled(self.reached)
        if trial is None or self.budget_seconds is None or time.monotonic() - self.begun <= self.budget_seconds:
            return False
        return self._end(f"the {self.budget_seconds:.0f} s are used before the next look")

    def next_at(self) -> int | None:
        """Return how many trials of the plan come before the next look; None: there is none."""
        return sum(repeat < self.waiting[0].n for _, repeat in self.context.plan.order) if self.waiting else None

    def _take(self, stage: Stage) -> TakenLook | None:
        """Judge the primary contrast, write the look down and show it."""
        record = read_record(self.context.folder.root)
        taken = take_look(record.plan, record.results, stage, record.execution)
        if taken is None:
            return None
        line = taken.line().model_copy(update={"at_ms": float(round(time.time() * 1e3))})
        append_line(self.context.folder.looks, line)
        self.context.watcher.look_taken(line, taken.found)
        return taken

    def _is_spent(self, taken: TakenLook) -> bool:
        """End the run at this look if the time does not last until the next one."""
        if self.budget_seconds is None or not self.waiting:
            return False
        used, pairs = time.monotonic() - self.begun, taken.stage.n - self.first_repeat
        needed = used / pairs * (self.waiting[0].n - taken.stage.n) if pairs > 0 else 0.0
        if used + needed <= self.budget_seconds:
            return False
        return self._end(f"{used:.0f} s of {self.budget_seconds:.0f} s are used; the next look, at "
                         f"{self.waiting[0].n} pairs, would take about {needed:.0f} s more")

    def _end(self, text: str) -> bool:
        further = "; repro run --resume continues with the next pairs" if self.waiting else ""
        self.context.warn("budget", f"{text}{further}")
        return True


def doomed(plan: Plan, ended: Sequence[Result]) -> str:
    """Return why no trial of a plan would end well, if the first of every cell, and at least two, crashed with one
    reason; else "". A contest counts every declared run, so it goes on.
    """
    if len(ended) < 2 or plan.design.is_contest or {item.cell_id for item in ended} != {
            cell.cell_id for cell in plan.cells}:
        return ""
    said = {item.said or f"exit code {item.exit_code}" if isinstance(item, RankFailed) else item.words
            for result in ended for item in result.reasons}
    return said.pop() if len(said) == 1 and all(item.status == "crashed" for item in ended) else ""


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
        self.watch.begin(plan.uses_gpus)
        washed = set(washed_out((trial.cell_id, trial.repeat) for trial in trials)) if plan.washes_out else set()
        ended: list[Result] = []
        for number, trial in enumerate(trials, self._done(trials) + 1):
            raise_dropped()
            if self.looks.end_before(trial):
                return
            if (trial.cell_id, trial.repeat) in washed:
                self.context.watcher.stage(f"wash-out: an unmeasured trial of {self._cell(trial).label}")
                self.starter.wash_out(trial)
            result = self._run_trial(record, trial, number)
            if plan.suite.on_failure == "stop" and meaning(result.status).failed:
                text = f"stopped after a trial that {meaning(result.status).words}, as the suite's on_failure says"
                self.context.warn("stopped", text, trial.trial_id)
                return
            ended.append(result)
            if len(ended) < len(trials) and (why := doomed(plan, ended)):
                text = (f"stopped after {len(ended)} trials: the first of every cell crashed alike ({why}), so the "
                        "others would too")
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

    def _cell(self, trial: Trial) -> Cell:
        return next(cell for cell in self.context.plan.cells if cell.cell_id == trial.cell_id)

    def _start(self, trial: Trial, attempt: int, number: int) -> Result | None:
        watcher = self.context.watcher
        count, look = len(self.context.plan.order), self.looks.next_at()
        watcher.trial_started(number, count, trial, self._cell(trial), look)
        begin = time.monotonic()
        result = self.starter.start(trial, attempt)
        if result is not None:
            watcher.trial_ended(result, time.monotonic() - begin)
            self.watch.check(self.context, trial.trial_id, self.strict)
            self.starter.replays.request(TRIAL_SECONDS)
        return result
