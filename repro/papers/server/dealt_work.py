"""The work of a run whose workers do not train in lock step: its units, its rates, its sample grid."""

from __future__ import annotations

from collections.abc import Callable

from repro.seams.server_work import ServerWork
from repro.suite.kinds.training import TrainingConfig
from repro.worker.context import block_steps


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
        an_update: samples that one update is the mean of.
        now: nanoseconds of the log's clock.
    """
    each = choices.batch.global_ // an_update

    def rate(updates: int) -> float:
        # The schedule runs over the applied samples.
        epochs = updates * an_update / choices.train_samples
        return choices.rate * choices.schedule.factor(epochs, choices.budget_epochs)

    return ServerWork(choices.budget_steps * each, rate, tuple(step * each for step in sample_grid(choices)), now)
