"""Ten defects of an engine, chosen by somebody who had read engines and sessions, but none of the checks.

The list was written in words before the checks were read. Each changes what is trained or measured. Four turned out to
be of the same kind as one of the others: `left_in_evaluation`, `bf16_state`, `warm_state` and `reset_state`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from plant import Plant, defect

from repro.engines.plain.loop import LoopSession
from repro.seams.training import Batch, Job, TrainingParts

CHUNK = 64
"""Samples of a forward pass of an evaluation."""
RESET = 16
"""Updates between two new optimizers."""


@defect("update", "weight", before=True)
def lax_clip(parts: TrainingParts, job: Job) -> Job:
    """The clip limit is compared with the norm of one rank's share: it is `world` times too large."""
    assert job.gradient_clip is not None
    return replace(job, gradient_clip=job.gradient_clip * job.world)


@defect("gradient")
def uncleared(plant: Plant) -> None:
    """The gradient of the last parameter is never cleared: each step adds to that of the step before."""
    last = plant.session.trained()[-1][0]
    left: list[torch.Tensor] = []
    seen: list[int] = []

    def change(name: str, gradient: torch.Tensor) -> torch.Tensor:
        if name != last:
            return gradient
        first = seen[-1:] != [plant.updates]
        seen.append(plant.updates)
        before = left[-1] if left else torch.zeros_like(gradient)
        left[:] = [before + gradient]
        return gradient + before if first else gradient

    plant.on_gradients(change)


@defect("update", "weight")
def spike_guard(plant: Plant) -> None:
    """A guard against spikes skips the update where the gradient's norm exceeds twice its running mean."""
    means: list[float] = []

    def change(rate: float) -> float | None:
        norm = float(sum(np.square(array, dtype=np.float64).sum() for array in plant.session.gradients().values()))**.5
        mean = means[-1] if means else norm
        means[:] = [0.9 * mean + 0.1 * norm]
        return None if norm > 2 * mean else rate

    plant.on_rate(change)


@defect("update", "weight", "optimizer")
def bf16_state(plant: Plant) -> None:
    """The optimizer's state is kept in bfloat16: it is rounded after every step."""

    def change() -> None:
        for _, value in _state(plant):
            value.copy_(value.bfloat16())

    plant.after_update(change)


@defect("update", "weight", "optimizer")
def reset_state(plant: Plant) -> None:
    """The optimizer is built again every 16 steps, as at the border of an epoch: its state is lost."""

    def change() -> None:
        if plant.updates % RESET == 0:
            for _, value in _state(plant):
                value.zero_()

    plant.after_update(change)


@defect("loss", "gradient", "buffers", "evaluation", workload="batch")
def left_in_evaluation(plant: Plant) -> None:
    """An evaluation leaves the model's layers in evaluation mode: training goes on with running statistics."""

    def evaluate(evaluation: Any, batches: list[Batch], metric: str) -> tuple[float, int]:
        found: tuple[float, int] = evaluation(batches, metric)
        for layer in plant.session.model.children():
            layer.eval()
        return found

    plant.around_evaluation(evaluate)


@defect("evaluation")
def mean_of_means(plant: Plant) -> None:
    """An evaluation averages the batches' means: samples of a smaller last batch count more."""

    def evaluate(evaluation: Any, batches: list[Batch], metric: str) -> tuple[float, int]:
        means, samples = [], 0
        for inputs, targets in batches:
            for start in range(0, len(targets), CHUNK):
                total, count = evaluation([(inputs[start:start + CHUNK], targets[start:start + CHUNK])], metric)
                means.append(total / count)
                samples += count
        return sum(means) / len(means) * samples, samples

    plant.around_evaluation(evaluate)


@defect("update", "weight")
def warm_state(plant: Plant) -> None:
    """The warm-up leaves its optimizer state behind: momentum and step count begin with synthetic data."""
    before = plant.session.warm_up
    kept: dict[Any, dict[str, Any]] = {}
    warming: list[bool] = []

    def keep() -> None:
        if warming:
            kept.update({parameter: {key: value.clone() if isinstance(value, torch.Tensor) else value
                                     for key, value in state.items()}
                         for parameter, state in plant.session.optimizer.state.items()})

    def warm_up(batches: Sequence[Batch]) -> None:
        warming.append(True)
        before(batches)
        warming.clear()
        for parameter, state in kept.items():
            plant.session.optimizer.state[parameter].update(state)

    plant.after_update(keep)
    plant.session.warm_up = warm_up


@defect("loss", "gradient", "input")
def stale_batch(plant: Plant) -> None:
    """A prefetch buffer is reused too early: every tenth step trains on the batch of the step before."""
    last: list[Sequence[Batch]] = []

    def change(batches: Sequence[Batch]) -> Sequence[Batch]:
        stale = last[0] if last and plant.updates % 10 == 9 else batches
        last[:] = [batches]
        return stale

    plant.on_batches(change)


@defect("gradient", "update", "weight", "ranks")
def rare_sync(plant: Plant) -> None:
    """Parameters of one dimension are averaged every fourth step only: between, ranks use their own.

    Where the states are divided, the rank that owns a part uses its own gradient: here rank 0.
    """
    small = {name for name, parameter in plant.session.trained() if len(getattr(parameter, "ds_shape", parameter.shape))
             == 1}
    if not isinstance(plant.session, LoopSession):
        own = plant.job.world if plant.job.rank == 0 else 0
        plant.on_gradients(
            lambda name, gradient: gradient * own if name in small and plant.updates % 4 != 3 else gradient)
        return
    local: dict[str, torch.Tensor] = {}

    def keep(name: str, gradient: torch.Tensor) -> torch.Tensor:
        if name in small:
            local[name] = local.get(name, torch.zeros_like(gradient)) + gradient
        return gradient

    def own_gradients(rate: float) -> float:
        for name, parameter in plant.session.trained():
            if name in small:
                parameter.grad.copy_(local[name])
        local.clear()
        return rate

    def average() -> None:
        if plant.updates % 4 == 0:
            for name, parameter in plant.session.trained():
                if name in small:
                    dist.all_reduce(parameter.data)
                    parameter.data.div_(plant.job.world)

    plant.on_gradients(keep)
    plant.on_rate(own_gradients)
    plant.after_update(average)


def _state(plant: Plant) -> list[tuple[str, torch.Tensor]]:
    """Return the tensors of the optimizer's state that have one number for each weight."""
    return [(key, value) for state in plant.session.optimizer.state.values() for key, value in state.items()
            if isinstance(value, torch.Tensor) and value.ndim]
