"""Ten defects of real training engines, written by somebody who had not read the gate's checks.

Most of them are rare (one step in tens) or begin late: they are there to find gaps, not to be found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from plant import Plant, defect

from repro.optimizers.rules import Sgd
from repro.seams.training import Batch, Job, TrainingParts

EPOCH = 44
"""Updates of an epoch of the digits, 32 samples each."""
RARE = 30
"""Updates between two strikes of a race."""


# ---- learning rate


@defect("update", "weight")
def rate_one_step_behind(plant: Plant) -> None:
    """The scheduler steps after the optimizer: every update has the rate of the one before."""
    last: list[float] = []

    def change(rate: float) -> float:
        if not rate:  # the warm-up's
            return rate
        last.append(rate)
        return last[-2] if len(last) > 1 else rate

    plant.on_rate(change)


@defect("update", "weight")
def rate_of_first_group_only(plant: Plant) -> None:
    """The schedule reaches the first group of parameters; the others keep the rate they began with."""
    before = plant.session.set_rate

    def set_rate(rate: float) -> None:
        before(rate)
        for group in plant.groups[1:]:
            group["lr"] = plant.first_rate if rate else 0.0

    plant.session.set_rate = set_rate


# ---- warm-up


@defect("update", "weight", "gradient")
def warm_up_leaves_its_momentum(plant: Plant) -> None:
    """The steps of the warm-up are not undone: the weights are as before, the optimizer's momentum is not."""

    def warm_up(batches: Sequence[Batch]) -> None:
        for _ in range(2):
            plant.session.step(batches, 0.0)

    plant.session.warm_up = warm_up


# ---- optimizer


@defect("optimizer", "update", "weight")
def momentum_lost_each_epoch(plant: Plant) -> None:
    """A new optimizer replaces the old one at the end of every epoch."""

    def change() -> None:
        if plant.updates % EPOCH == 0:
            _each_momentum(plant, torch.Tensor.zero_)

    plant.after_update(change)


@defect("optimizer", "update", "weight")
def momentum_in_bf16(plant: Plant) -> None:
    """The optimizer keeps its momentum in bfloat16."""
    plant.after_update(lambda: _each_momentum(plant, lambda kept: kept.copy_(kept.bfloat16())))


def _each_momentum(plant: Plant, change: Callable[[torch.Tensor], Any]) -> None:
    for state in plant.session.optimizer.state.values():
        if isinstance(kept := state.get("momentum_buffer"), torch.Tensor):
            change(kept)


class ClippedByGroup(Sgd):
    """SGD that clips the gradients of every group by their own norm (of this rank's shard, if there are shards)."""

    largest: float

    def build(self, named_parameters: Any) -> torch.optim.Optimizer:
        optimizer = super().build(named_parameters)
        optimizer.register_step_pre_hook(lambda stepping, *_: self._clip(stepping))
        return optimizer

    def _clip(self, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            torch.nn.utils.clip_grad_norm_(group["params"], self.largest)


@defect("update", "weight", "optimizer", before=True)
def clips_by_group(parts: TrainingParts, job: Job) -> Job:
    """Gradients are clipped by the norm of what the optimizer holds, not by that of the whole gradient."""
    assert job.gradient_clip is not None
    optimizer = ClippedByGroup(**job.optimizer.model_dump(), largest=job.gradient_clip)
    return replace(job, optimizer=optimizer, gradient_clip=None)


# ---- gradients and data


@defect("gradient")
def leftover_gradient(plant: Plant) -> None:
    """The gradient of an epoch's incomplete last step is not cleared: the next epoch's first step includes it."""
    kept: dict[str, torch.Tensor] = {}
    added: dict[str, int] = {}

    def change(name: str, gradient: torch.Tensor) -> torch.Tensor:
        left, kept[name] = kept.get(name), gradient.clone()
        begins = plant.updates and plant.updates % EPOCH == 0 and added.get(name) != plant.updates
        if not begins or left is None:
            return gradient
        added[name] = plant.updates
        return gradient + left

    plant.on_gradients(change)


@defect("loss", "gradient", "input")
def inputs_overtaken(plant: Plant) -> None:
    """A buffer for copies is used again too early: once in a while rank 1 sees old inputs with new targets."""

    def change(batches: Sequence[Batch]) -> Sequence[Batch]:
        if plant.job.rank != 1 or plant.updates % RARE != RARE - 1:
            return batches
        first, *others = batches
        return [first, *((first[0], targets) for _, targets in others)]

    plant.on_batches(change)


@defect("gradient", "weight")  # the step after an evaluation is not taken apart
def local_step_after_evaluation(plant: Plant) -> None:
    """After an evaluation gradients are not averaged in one step: all ranks use those of rank 0."""
    local = [False]

    def evaluate(evaluation: Any, batches: list[Batch], metric: str) -> tuple[float, int]:
        found: tuple[float, int] = evaluation(batches, metric)
        local[0] = True
        return found

    def ended() -> None:
        local[0] = False

    plant.around_evaluation(evaluate)
    plant.after_update(ended)
    own = plant.job.world if plant.job.rank == 0 else 0
    plant.on_gradients(lambda _, gradient: gradient * own if local[0] else gradient)


# ---- evaluation


@defect("loss", "gradient", "buffers", "evaluation", workload="batch")
def batch_norm_stays_in_evaluation(plant: Plant) -> None:
    """After the first evaluation batch norm uses its running statistics in training too."""

    def evaluate(evaluation: Any, batches: list[Batch], metric: str) -> tuple[float, int]:
        found: tuple[float, int] = evaluation(batches, metric)
        for module in plant.session.model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.eval()
        return found

    plant.around_evaluation(evaluate)


@defect("evaluation")
def evaluation_one_behind(plant: Plant) -> None:
    """The metric is read before its sum has arrived: every evaluation reports that of the one before."""
    sums: list[float] = []

    def evaluate(evaluation: Any, batches: list[Batch], metric: str) -> tuple[float, int]:
        sum_, samples = evaluation(batches, metric)
        sums.append(sum_)
        return (sums[-2] if len(sums) > 1 else sum_), samples

    plant.around_evaluation(evaluate)
