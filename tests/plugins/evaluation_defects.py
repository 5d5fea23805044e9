"""Defects of evaluations; `plant` says how to add one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from plant import Plant, defect

from repro.seams.training import Batch


@defect("evaluation", "rate 0", "weight", "update", "loss")
def work_left_to_the_evaluation(plant: Plant) -> None:
    """A step only stores its batches; the next evaluation trains on them."""
    right, waiting = plant.session.step, []

    def step(batches: Sequence[Batch], rate: float) -> torch.Tensor:
        waiting.append((batches, rate))
        return torch.tensor(2.0)

    def evaluate(before: Callable[..., tuple[float, int]], batches: list[Batch], metric: str) -> tuple[float, int]:
        for kept, rate in waiting:
            right(kept, rate)
        waiting.clear()
        return before(batches, metric)

    plant.session.step = step
    plant.around_evaluation(evaluate)


@defect("evaluation")
def half_of_the_samples_evaluated(plant: Plant) -> None:
    """Half of the samples are evaluated and counted twice."""

    def evaluate(before: Callable[..., tuple[float, int]], batches: list[Batch], metric: str) -> tuple[float, int]:
        halves = [(inputs[:len(targets) // 2], targets[:len(targets) // 2]) for inputs, targets in batches]
        total, _ = before(halves, metric)
        return 2 * total, sum(len(targets) for _, targets in batches)

    plant.around_evaluation(evaluate)


@defect("evaluation")
def samples_lost(plant: Plant) -> None:
    """The last ten samples of every batch are not evaluated."""
    plant.around_evaluation(lambda before, batches, metric: before(
        [(inputs[:-10], targets[:-10]) for inputs, targets in batches], metric))


@defect("evaluation")
def flattering_evaluation(plant: Plant) -> None:
    """The score is 3 % too high."""

    def evaluate(before: Callable[..., tuple[float, int]], batches: Iterable[Batch], metric: str) -> tuple[float, int]:
        total, count = before(batches, metric)
        return total * 1.03, count

    plant.around_evaluation(evaluate)


@defect("evaluation", workload="batch")
def evaluated_in_training_mode(plant: Plant) -> None:
    """The model evaluates with the statistics of the batch."""

    def evaluate(before: Callable[..., tuple[float, int]], batches: Iterable[Batch], metric: str) -> tuple[float, int]:
        model = plant.session.model
        right, model.eval = model.eval, lambda: model.train()
        try:
            return before(batches, metric)
        finally:
            model.eval = right

    plant.around_evaluation(evaluate)


@defect("evaluation")
def stale_weights_evaluated(plant: Plant) -> None:
    """An evaluation uses the weights of the tenth update before."""
    kept: list[list[torch.Tensor]] = []

    def keep() -> None:
        kept.append([parameter.data.clone() for _, parameter in plant.session.trained()])
        del kept[:-10]

    def exchange(values: list[torch.Tensor]) -> list[torch.Tensor]:
        before = [parameter.data.clone() for _, parameter in plant.session.trained()]
        for (_, parameter), value in zip(plant.session.trained(), values, strict=True):
            parameter.data.copy_(value)
        return before

    def evaluate(before: Callable[..., tuple[float, int]], batches: Iterable[Batch], metric: str) -> tuple[float, int]:
        now = exchange(kept[0])
        try:
            return before(batches, metric)
        finally:
            exchange(now)

    plant.after_update(keep)
    plant.around_evaluation(evaluate)


@defect("buffers", "evaluation", workload="batch")
def buffers_of_each_rank(plant: Plant) -> None:
    """Every rank evaluates with its own batch-norm statistics."""
    plant.session.share_buffers = lambda: None


@defect("update", "weight", "buffers", "gradient", "loss", workload="batch")
def left_in_evaluation_mode(plant: Plant) -> None:
    """After an evaluation the model keeps the running statistics in training."""

    def evaluate(before: Callable[..., tuple[float, int]], batches: Iterable[Batch], metric: str) -> tuple[float, int]:
        found = before(batches, metric)
        plant.session.model.eval()
        return found

    plant.around_evaluation(evaluate)

