"""Defects that begin after the last step that the gate compares: only what watches the trial itself finds them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from plant import Plant, defect

from repro.seams.training import Batch, Job, TrainingParts

LATER = 70
"""Updates after which they begin; the gate ends at step 59."""


def later(plant: Plant) -> bool:
    return plant.updates >= LATER


@defect("inputs")
def trains_on_test_data(plant: Plant) -> None:
    """From step 70 on every batch is one of the evaluation samples."""
    parts = plant.session.parts

    def change(batches: Sequence[Batch]) -> Sequence[Batch]:
        if not later(plant):
            return batches
        first = 32 * plant.updates + 16 * plant.job.rank
        return [parts.eval_batch((first + np.arange(len(targets)) + 8 * place) % 360)
                for place, (_, targets) in enumerate(batches)]

    plant.on_batches(change)


class WorkOnReading:
    """A loss whose work is done when somebody reads it."""

    def __init__(self, work: Any) -> None:
        self.work, self.value = work, None

    def __float__(self) -> float:
        if self.value is None:
            self.value = float(self.work())
        return self.value


@defect("outside")
def works_when_the_loss_is_read(plant: Plant) -> None:
    """A step returns at once; forward, backward and update run when its loss is read, after the timed block."""
    step = plant.session.step
    plant.session.step = lambda batches, rate: WorkOnReading(lambda: step(batches, rate)) \
        if later(plant) or plant.updates > 4 else step(batches, rate)


@defect("inputs")
def batch_trained_again_late(plant: Plant) -> None:
    """After 70 steps every second batch is the one before."""
    kept: list[Sequence[Batch]] = []

    def change(batches: Sequence[Batch]) -> Sequence[Batch]:
        if not later(plant) or plant.updates % 2 == 0 or not kept:
            kept[:] = [batches]
        return kept[0]

    plant.on_batches(change)


@defect("samples")
def samples_dropped_late(plant: Plant) -> None:
    """After 70 steps the last micro-batch is cut to one half."""
    plant.on_batches(lambda batches: batches if not later(plant) else [
        *batches[:-1], (batches[-1][0][:len(batches[-1][1]) // 2], batches[-1][1][:len(batches[-1][1]) // 2])])


@defect("autocast")
def autocast_late(plant: Plant) -> None:
    """After 70 steps the model computes in bfloat16 products, or in full precision if those were asked for."""
    forward, asked = plant.session.forward, plant.job.precision.autocast is not None
    model = plant.session.model

    def within(*args: Any) -> None:
        torch.set_autocast_enabled("cpu", not asked)

    def change(inputs: Any) -> Any:
        if not later(plant) or not model.training:
            return forward(inputs)
        handle = model.register_forward_pre_hook(within, prepend=True)
        before = torch.is_autocast_enabled("cpu")
        torch.set_autocast_dtype("cpu", torch.bfloat16)
        try:
            return forward(inputs)
        finally:
            handle.remove()
            torch.set_autocast_enabled("cpu", before)

    plant.session.forward = change


@defect("rate")
def rate_held_late(plant: Plant) -> None:
    """After 70 updates the schedule no longer reaches the optimizer."""
    kept: list[float] = []

    def change(rate: float) -> float:
        if not later(plant):
            kept[:] = [rate]
        return kept[0]

    plant.on_rate(change)


@defect("updates")
def update_dropped_late(plant: Plant) -> None:
    """After 70 updates every seventh is not made; its gradients are cleared."""
    plant_step(plant, lambda step: None if later(plant) and plant.updates % 7 == 0 else step())


@defect("updates")
def update_twice_late(plant: Plant) -> None:
    """At update 75 the optimizer steps twice."""

    def change(step: Any) -> None:
        step()
        if plant.updates == LATER + 5:
            step()

    plant_step(plant, change)


def plant_step(plant: Plant, change: Any) -> None:
    """Replace the step of the trial's optimizer."""
    optimizer = plant.session.optimizer
    before = optimizer.step
    optimizer.step = lambda *args, **kwargs: change(lambda: before(*args, **kwargs))


@defect("ranks", "weight")
def rank_1_drifts_late(plant: Plant) -> None:
    """At update 80 rank 1's own weights leave those of the others; at the end of the trial they are equal again."""

    def change() -> None:
        if plant.job.rank == 1 and plant.updates >= LATER + 10:
            with torch.no_grad():
                for _, parameter in plant.session.trained():
                    parameter.data.mul_(1 + 1e-4)

    plant.after_update(change)


@defect("targets")
def targets_of_the_neighbour_late(plant: Plant) -> None:
    """After 70 steps the targets are moved by one sample."""
    plant.on_batches(lambda batches: batches if not later(plant) else [
        (inputs, targets.roll(1)) for inputs, targets in batches])


@defect("inputs")
def inputs_scaled_late(plant: Plant) -> None:
    """After 70 steps the inputs are a thousandth too large, as of another normalisation."""
    plant.on_batches(lambda batches: batches if not later(plant) else [
        (inputs * 1.001, targets) for inputs, targets in batches])


@defect("loss")
def labels_smoothed_late(plant: Plant) -> None:
    """After 70 steps another loss than the workload's is trained."""
    right = plant.session.parts.loss

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if not later(plant):
            return right(outputs, targets)
        return torch.nn.functional.cross_entropy(outputs.float(), targets, label_smoothing=0.05)

    plant.session.parts.loss = loss


@defect("moved", before=True)
def input_changes_weights_late(parts: TrainingParts, job: Job) -> Job:
    """While a batch is read the weights change: after 61 batches a little in each."""
    right, read = parts.train_batch, [0]

    def train_batch(epoch: int, indices: np.ndarray) -> Batch:
        read[0] += 1
        if read[0] > 61 * job.accumulation:
            with torch.no_grad():
                for parameter in parts.model.parameters():
                    parameter.data.mul_(1 - 1e-6)
        return right(epoch, indices)

    parts.train_batch = train_batch
    return job


@defect("update")
def decayed_late(plant: Plant) -> None:
    """After 70 updates every update contains weight decay that the suite does not request."""

    def change(step: Any) -> None:
        for parameter in (item for group in plant.groups for item in group["params"] if later(plant)):
            if parameter.grad is not None:
                with torch.no_grad():
                    parameter.grad.add_(parameter.detach(), alpha=0.01)
        step()

    plant_step(plant, change)


@defect("loss", workload="batch")
def variance_grows_late(plant: Plant) -> None:
    """After 70 updates batch norm's running variance grows by a hundredth in every step."""
    backward = plant.session.backward

    def changed(batches: Sequence[Batch]) -> Any:
        loss = backward(batches)
        for name, buffer in plant.session.model.named_buffers() if later(plant) else ():
            if "running_var" in name:
                buffer.mul_(1.01)
        return loss

    plant.session.backward = changed


def emptied(optimizer: Any) -> None:
    """Set what an optimizer keeps to zero."""
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor):
                (value.to_local() if hasattr(value, "to_local") else value).zero_()


@defect("state")
def momentum_gone_after_evaluations(plant: Plant) -> None:
    """Every evaluation clears the momentum."""
    evaluate = plant.session.evaluate

    def changed(*given: Any) -> Any:
        found = evaluate(*given)
        with torch.no_grad():
            emptied(plant.session.optimizer)
        return found

    plant.session.evaluate = changed


@defect("update")
def limit_follows_rate(plant: Plant) -> None:
    """After 70 steps the limit of clipping falls with the square of the rate."""
    session, limit = plant.session, plant.job.gradient_clip
    wrapper = getattr(getattr(session, "engine", None), "optimizer", None)
    update, clip, factor = session.update, getattr(session, "clip", None), [1.0]

    def changed(rate: float) -> None:
        factor[0] = max((rate / plant.first_rate)**2, 1e-3) if later(plant) and plant.first_rate else 1.0
        if wrapper is not None:
            wrapper.clip_grad = limit * factor[0]
        update(rate)
        if wrapper is not None:
            wrapper.clip_grad = limit

    session.update = changed
    if wrapper is None:
        session.clip = lambda given: clip(given * factor[0])


@defect("update")
def spikes_dropped(plant: Plant) -> None:
    """After 70 steps those whose loss is a fifth above the running mean change no weight."""
    session, mean, spike = plant.session, [0.0], [False]
    backward, step = session.backward, session.optimizer.step

    def told(batches: Any) -> Any:
        loss = backward(batches)
        value = session.total([float(loss)])[0] / plant.job.world
        spike[0] = later(plant) and bool(mean[0]) and value > 1.2 * mean[0]
        mean[0] = 0.9 * mean[0] + 0.1 * value if mean[0] else value
        return loss

    def stepped(*given: Any, **named: Any) -> Any:
        for group in session.optimizer.param_groups if spike[0] else ():
            for parameter in group["params"]:
                if parameter.grad is not None:
                    (parameter.grad.to_local() if hasattr(parameter.grad, "to_local") else parameter.grad).zero_()
        return step(*given, **named)

    session.backward, session.optimizer.step = told, stepped


@defect("dealt", before=True)
def sample_doubled(parts: TrainingParts, job: Job) -> Job:
    """After 140 micro-batches every one has its second sample twice and its first one not."""
    read, calls = parts.train_batch, [0]

    def train_batch(epoch: int, indices: np.ndarray) -> Batch:
        inputs, targets = read(epoch, indices)
        calls[0] += 1
        if calls[0] > 2 * LATER:
            inputs, targets = inputs.clone(), targets.clone()
            inputs[0], targets[0] = inputs[1], targets[1]
        return inputs, targets

    parts.train_batch = train_batch
    return job
