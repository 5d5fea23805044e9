"""A rank that trains nothing but serves the workers, and the work of a run whose workers are not in lock step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from repro.core.random_streams import Streams
from repro.seams.training import Engine, ServerWork, TrainingParts
from repro.suite.kinds.training import TrainingConfig
from repro.suite.model import Trial
from repro.worker.clock import make_clock
from repro.worker.setup import RankPlace, block_steps, build_parts, make_job


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


def sample_grid(choices: TrainingConfig) -> list[int]:
    """Return the steps after which blocks end."""
    found, step = [], 0
    while step < choices.budget_steps:
        step += block_steps(choices, step)
        found.append(step)
    return found


def dealt_work(choices: TrainingConfig, an_update: int, now: Callable[[], int]) -> ServerWork:
    """Return the work of a whole run.

    Args:
        an_update: number of samples averaged into one update.
        now: nanoseconds of the log's clock.
    """
    each = choices.batch.global_ // an_update

    def rate(updates: int) -> float:
        # The schedule runs over the applied samples.
        epochs = updates * an_update / choices.train_samples
        return choices.rate * choices.schedule.factor(epochs, choices.budget_epochs)

    return ServerWork(choices.budget_steps * each, rate, tuple(step * each for step in sample_grid(choices)), now)
