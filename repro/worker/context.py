"""The objects that every part of a rank's training loop shares."""

from __future__ import annotations

import math
from dataclasses import dataclass

from repro.core.events import EventLog
from repro.record.log.schema import Bar
from repro.seams.training import Job, Session, TrainingParts, Workload
from repro.suite.kinds.training import TrainingConfig
from repro.suite.model import Trial
from repro.worker.clock import RankClock
from repro.worker.setup import Started


@dataclass(frozen=True, slots=True)
class TrialContext:
    """One rank of one trial: its configuration, its session, its data, its log and its clock."""

    trial: Trial
    job: Job
    started: Started
    log: EventLog
    clock: RankClock
    bar: Bar | None = None
    """Of a tuning trial that may be abandoned as hopeless."""

    @property
    def session(self) -> Session:
        return self.started.session

    @property
    def parts(self) -> TrainingParts | None:
        """None for an engine that needs no model (the fake)."""
        return self.started.parts

    @property
    def choices(self) -> TrainingConfig:
        return self.trial.training

    @property
    def workload(self) -> Workload:
        return self.choices.workload.get(Workload)

    @property
    def budget_steps(self) -> int:
        """Steps that the declared budget allows."""
        return self.choices.budget_steps

    def block_steps(self, step: int) -> int:
        """Return the steps of the block that begins after `step` steps."""
        return block_steps(self.choices, step)

    def count_samples(self, step: int) -> int:
        """Samples of all ranks together after `step` optimizer steps."""
        return step * self.choices.batch.global_


def block_steps(choices: TrainingConfig, step: int) -> int:
    """Return the steps of the block that begins after `step` steps.

    With a target they are those up to the next evaluation, CEIL(`evaluate_every` / global batch); without one, all
    warm-up steps, then all timed steps.
    """
    rest = choices.budget_steps - step
    if choices.evaluate_every is not None:
        return min(math.ceil(choices.evaluate_every / choices.batch.global_), rest)
    return choices.stop.warmup if step < choices.stop.warmup else rest
