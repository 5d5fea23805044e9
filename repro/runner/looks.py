"""The looks of a sequential run: before the trials that follow one, the primary contrast is judged and written down."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from repro.compare.design.sequential import TakenLook, stages, take_look
from repro.compare.evidence.stage import Stage
from repro.record.folder.ledger import append_line
from repro.record.folder.store import Record, read_record
from repro.runner.context import RunContext
from repro.suite.model import Trial


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

    @classmethod
    def of(cls, context: RunContext, record: Record, trials: Sequence[Trial], budget_seconds: float | None) -> Looks:
        """Return the looks that this execution takes: those after its first trial, and those not taken before it."""
        if not context.plan.design.looks:
            return cls(context, [])
        first = trials[0].repeat if trials else context.plan.design.repeats
        known = {look.number for look in record.looks if look.decision != "failed" and look.n <= first}
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
        return trial is not None and self._is_late()

    def count(self, trial: Trial) -> int:
        """Return how many trials of the plan run up to the next look, or in all without one."""
        order = self.context.plan.order
        until = self.waiting[0].n if self.waiting else None
        return len(order) if until is None else sum(repeat < until for _, repeat in order)

    def _take(self, stage: Stage) -> TakenLook | None:
        """Judge the primary contrast, write the look down and show it."""
        record = read_record(self.context.folder.root)
        taken = take_look(record.plan, record.results, stage, record.started_ms)
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

    def _is_late(self) -> bool:
        if self.budget_seconds is None or time.monotonic() - self.begun <= self.budget_seconds:
            return False
        return self._end(f"the {self.budget_seconds:.0f} s are used before the next look")

    def _end(self, text: str) -> bool:
        further = "; repro run --resume continues with the next pairs" if self.waiting else ""
        self.context.warn("budget", f"{text}{further}")
        return True
