"""Defects that begin after the gate and end before the trial does: no step after it shows them, a kept one does.

Each of the gradient or the loss acts in the whole doubling of steps from 64 on, of which the harness keeps one step
that it draws. Those of the weights act in single steps.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from plant import Plant, defect

from repro.core.events import EventLog
from repro.seams.training import Batch

BEGINS, ENDS = 60, 115
"""Updates, the two of the warm-up included."""


def passing(plant: Plant) -> bool:
    return BEGINS <= plant.updates < ENDS


@defect("gradient")
def layer_rests(plant: Plant) -> None:
    """The first layer is not trained for a while, as when layers are frozen in turn."""
    first = plant.session.trained()[0][0]
    plant.on_gradients(lambda name, gradient: gradient * 0 if passing(plant) and name == first else gradient)


@defect("gradient")
def rounded_for_a_while(plant: Plant) -> None:
    """Gradients are rounded to bfloat16 for a while."""
    plant.on_gradients(lambda _, gradient: gradient.bfloat16().to(gradient.dtype) if passing(plant) else gradient)


@defect("gradient")
def one_rank_for_a_while(plant: Plant) -> None:
    """Rank 0's gradient is taken for the mean for a while, as in an algorithm that begins with cheap steps."""
    plant.on_gradients(lambda _, gradient: gradient * (plant.job.world if plant.job.rank == 0 else 0)
                       if passing(plant) else gradient)


@defect("gradient")
def rank_1_counts_twice_for_a_while(plant: Plant) -> None:
    """Rank 1's gradient counts twice for a while, as with a loss scale of its own."""
    plant.on_gradients(lambda _, gradient: gradient * 2 if passing(plant) and plant.job.rank == 1 else gradient)


@defect("gradient")
def thinned_for_a_while(plant: Plant) -> None:
    """Only gradients above the mean size are used for a while, as in a sparse exchange that warms up."""
    plant.on_gradients(lambda _, gradient: gradient * (gradient.abs() > gradient.abs().mean())
                       if passing(plant) else gradient)


@defect("loss", "gradient")
def softer_for_a_while(plant: Plant) -> None:
    """The outputs are divided by 1.5 for a while, a softer target than was asked for."""
    forward, model = plant.session.forward, plant.session.model
    plant.session.forward = lambda inputs: (
        forward(inputs) / 1.5 if passing(plant) and model.training else forward(inputs))


@defect("gradient")
def last_micro_batch_for_a_while(plant: Plant) -> None:
    """The gradient of the last micro-batch replaces the mean for a while."""
    calls: dict[str, int] = {}

    def change(name: str, gradient: torch.Tensor) -> torch.Tensor:
        calls[name] = calls.get(name, 0) + 1
        if not passing(plant):
            return gradient
        return gradient * (0 if calls[name] % plant.job.accumulation else plant.job.accumulation)

    plant.on_gradients(change)


@defect("loss", "gradient")
def narrow_for_a_while(plant: Plant) -> None:
    """The weights are rounded to bfloat16 in the forward pass for a while."""
    backward: Any = plant.session.backward

    def change(batches: Sequence[Batch]) -> Any:
        if not passing(plant):
            return backward(batches)
        parameters = [parameter for _, parameter in plant.session.trained()]
        kept = [parameter.data.clone() for parameter in parameters]
        for parameter in parameters:
            parameter.data.copy_(parameter.data.bfloat16().to(parameter.dtype))
        loss = backward(batches)
        for parameter, values in zip(parameters, kept, strict=True):
            parameter.data.copy_(values)
        return loss

    plant.session.backward = change


def stepped(plant: Plant) -> list[torch.Tensor]:
    """The tensors that the optimizer steps, of this rank."""
    return [*plant.session.optimizer.state]


@defect("weight")
def halved_once(plant: Plant) -> None:
    """One tensor is halved after one update, as by a repair that was left in."""

    def change() -> None:
        if plant.updates == 80:
            with torch.no_grad():
                first = stepped(plant)[0]
                (first.to_local() if hasattr(first, "to_local") else first).mul_(0.5)

    plant.after_update(change)


@defect("weight")
def rounded_now_and_then(plant: Plant) -> None:
    """All weights are rounded to bfloat16 after every thirtieth update, as by a checkpoint that is loaded."""

    def change() -> None:
        if plant.updates > BEGINS and plant.updates % 30 == 0:
            with torch.no_grad():
                for parameter in stepped(plant):
                    parameter.copy_(parameter.bfloat16())

    plant.after_update(change)


@defect("weight")
def momentum_reversed_once(plant: Plant) -> None:
    """What the optimizer keeps of its first tensor changes its sign after one update."""

    def change() -> None:
        if plant.updates == 90:
            with torch.no_grad():
                next(iter(plant.session.optimizer.state.values()))["momentum_buffer"].neg_()

    plant.after_update(change)


def before_the_optimizer(plant: Plant, change: Callable[[torch.Tensor], None]) -> None:
    """Change the gradient of each tensor that the optimizer is called with, after averaging and clipping."""
    step = plant.session.optimizer.step

    def changed(*args: Any, **named: Any) -> Any:
        for group in plant.groups if passing(plant) else ():
            for tensor in group["params"]:
                if tensor.grad is not None:
                    change(tensor.grad.to_local() if hasattr(tensor.grad, "to_local") else tensor.grad)
        return step(*args, **named)

    plant.session.optimizer.step = changed


@defect("weight")
def larger_steps_for_a_while(plant: Plant) -> None:
    """The optimizer is given three times the gradient for a while."""
    before_the_optimizer(plant, lambda gradient: gradient.data.mul_(3))


@defect("weight")
def other_samples_for_a_while(plant: Plant) -> None:
    """The gradient that the optimizer is given has noise in it for a while, as one of other samples would."""
    before_the_optimizer(plant, lambda gradient: gradient.data.add_(gradient.norm() * torch.ones_like(gradient) / 9))


@defect("weight")
def rests_before_the_step_for_a_while(plant: Plant) -> None:
    """Half of the tensors that the optimizer is called with lose their gradient for a while; of one tensor that one."""
    step = plant.session.optimizer.step

    def changed(*args: Any, **named: Any) -> Any:
        given = [tensor for group in plant.groups if passing(plant) for tensor in group["params"]]
        for tensor in given[:max(1, len(given) // 2)]:
            tensor.grad = None
        return step(*args, **named)

    plant.session.optimizer.step = changed


@defect("weight")
def hook_clamps_for_a_while(plant: Plant) -> None:
    """A hook behind the optimizer's step clamps the weights for a while, through `data`."""
    def change(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group in optimizer.param_groups if passing(plant) else ():
            for tensor in group["params"]:
                local = tensor.data.to_local() if hasattr(tensor.data, "to_local") else tensor.data
                local.clamp_(-0.2, 0.2)

    plant.session.optimizer.register_step_post_hook(change)


@defect("weight")
def own_step_for_a_while(plant: Plant) -> None:
    """The whole step is done in a backward pass for a while; taken apart, it is right."""
    session, whole = plant.session, plant.session.step

    def step(batches: Sequence[Batch], rate: float) -> Any:
        if not passing(plant):
            return whole(batches, rate)
        session.backward, backward = lambda batches: _smaller(session, backward(batches)), session.backward
        try:
            loss = session.backward(batches)
            type(session).update(session, rate)
            plant.updates += 1
            return loss
        finally:
            session.backward = backward

    session.step = step


def _smaller(session: Any, loss: Any) -> Any:
    for _, parameter in session.trained():
        if parameter.grad is not None:
            parameter.grad.mul_(0.1)
    return loss


@defect("weight")
def clamped_for_a_while(plant: Plant) -> None:
    """The weights are clamped behind each update for a while, through `data`, which raises no version."""
    def change() -> None:
        for parameter in plant.session.optimizer.state if passing(plant) else ():
            local = parameter.data.to_local() if hasattr(parameter.data, "to_local") else parameter.data
            local.clamp_(-0.2, 0.2)

    plant.after_update(change)


@defect("weight")
def momentum_fades_for_a_while(plant: Plant) -> None:
    """The momentum is halved before each step of the optimizer for a while, through `data`."""
    def change(_: torch.Tensor) -> None:
        for state in plant.session.optimizer.state.values():
            momentum = state["momentum_buffer"].data
            (momentum.to_local() if hasattr(momentum, "to_local") else momentum).mul_(0.5)

    before_the_optimizer(plant, change)


@defect("weight")
def momentum_lower_for_a_while(plant: Plant) -> None:
    """The momentum is 0.5 in updates 80 to 109, as by a schedule of its own."""

    def change() -> None:
        for group in plant.groups:
            group["momentum"] = 0.5 if 80 <= plant.updates < 110 else 0.9

    plant.after_update(change)


@defect("time")
def log_stops_for_a_while(plant: Plant) -> None:
    """The log's clock, by which evaluations are stamped, stands still in updates 80 to 99; the phases have another."""
    logs = [item for item in gc.get_objects() if isinstance(item, EventLog)]
    lost = [0, 0]

    def now() -> int:
        return lost[0] if lost[0] else time.monotonic_ns() - lost[1]

    def change() -> None:
        if plant.updates == 80:
            lost[0] = time.monotonic_ns()
        if plant.updates == 100:
            lost[:] = [0, time.monotonic_ns() - lost[0]]

    for log in logs:
        log._now = now
    plant.after_update(change)
