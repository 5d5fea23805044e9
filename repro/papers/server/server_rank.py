"""A rank that trains nothing: it holds a part of the weights and serves the workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from repro.core.random_streams import Streams
from repro.papers.server.dealt_work import dealt_work
from repro.seams.server_work import ServerWork
from repro.seams.training import Engine, TrainingParts
from repro.suite.model import Trial
from repro.worker.clock import make_clock
from repro.worker.setup import RankPlace, build_parts, make_job


def serve(
    trial: Trial, place: RankPlace, disturbance: int = 0, prepare: Callable[[TrainingParts], None] | None = None
) -> None:
    """Build the initial weights of the trial and serve them until the workers have ended; arguments as for
    `start_session`.
    """
    choices = trial.training
    job = replace(make_job(choices, place), device="cpu")
    engine = choices.engine.get(Engine)
    clock = make_clock(job.device, engine.clock(job, Streams(trial.master_seed, trial.repeat)))

    def work(an_update: int) -> ServerWork:
        return dealt_work(choices, an_update, clock.now)

    parts = build_parts(trial, job, disturbance, prepare)
    assert parts is not None, "an engine with servers trains a model"
    engine.serve(parts, job, None if engine.lockstep(job.world) else work)
