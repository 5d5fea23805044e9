"""The objects that every part of a rank's training loop shares."""

from __future__ import annotations

import math
from dataclasses import dataclass

from repro.core.events import EventLog
from repro.seams.training import Job, Session, TrainingParts, Workload
from repro.suite.model import Trial
from repro.suite.training import TrainingConfig
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

    @property
    def session(self) -> Session:
        return self.started.session

    @property
    def parts(self) -> TrainingParts | None:
        """None for an engine that needs no model (the fake)."""
        return self.started.parts

    @property
    def choices(self) -> TrainingConfig:
        return self.trial.choices

    @property
    def workload(self) -> Workload:
        return self.trial.choices.workload.get(Workload)

    @property
    def budget_steps(self) -> int:
        """Steps that the declared epochs allow, rounded up."""
        choices = self.choices
        return math.ceil(choices.stop.max_epochs * self.workload.train_samples / choices.batch.global_)

    @property
    def block_steps(self) -> int:
        """Steps between two evaluations: CEIL(`evaluate_every` / global batch)."""
        return math.ceil(self.choices.evaluate_every / self.choices.batch.global_)

    def count_samples(self, step: int) -> int:
        """Samples of all ranks together after `step` optimizer steps."""
        return step * self.choices.batch.global_
