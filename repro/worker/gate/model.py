"""Changes to a model in the parity gate, before its engine starts: what would differ between two correct engines."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from repro.core import devices
from repro.core.errors import TrialError
from repro.seams.training import TrainingParts
from repro.seams.workload import call_model
from repro.worker.gate.difference import RANDOM

if TYPE_CHECKING:
    import torch


class ScaledLoss:
    """A workload's loss times a factor that the gate sets.

    Args:
        loss: the workload's.
    """

    def __init__(self, loss: Callable[[Any, Any], Any]) -> None:
        self.loss = loss
        self.factor = 1.0
        self.whole = 0
        """Samples of a full micro-batch: a smaller one counts as much less, so that every sample counts alike. 0: no
        micro-batch is smaller."""

    def __call__(self, outputs: Any, targets: Any) -> Any:
        loss = self.loss(outputs, targets)
        factor = self.factor * (len(targets) / self.whole if self.whole else 1.0)
        return loss if factor == 1.0 else loss * factor


def prepare(parts: TrainingParts, ranks: int, device: str) -> None:
    """Make the model one that two correct engines train alike, and its loss one that the gate can scale.

    Args:
        device: of the trial; the model stays where it is.
        ranks: whose micro-batches this process trains on, one after the other; 1 unless it is the reference.

    Raises:
        TrialError: the model still draws random numbers.
    """
    make_plain(parts.model, parts)
    with _moved(parts.model, device):
        refuse_randomness(parts, device)
    if ranks > 1:
        keep_rank_0_buffers(parts.model, ranks)
    parts.loss = ScaledLoss(parts.loss)


def make_plain(model: torch.nn.Module, parts: TrainingParts) -> None:
    """Turn the random layers of a model off."""
    cut_dropout(model)
    if parts.without_randomness is not None:
        parts.without_randomness(model)


@contextmanager
def _moved(model: torch.nn.Module, device: str) -> Iterator[None]:
    """Inside, the model is on the device, whole: batches are there, and a model may need kernels of the device."""
    import torch

    before = next((parameter.device for parameter in model.parameters()), torch.device(device))
    model.to(device)
    try:
        yield
    finally:
        model.to(before)


def refuse_randomness(parts: TrainingParts, device: str = "cpu") -> None:
    """Compare two forward passes of one synthetic sample pair; buffers and random states are as before.

    Args:
        device: where the model and the samples are.

    Raises:
        TrialError: the losses differ because the model draws random numbers.
    """
    import torch

    inputs, targets = parts.synthetic_batch(2)
    buffers = [(buffer, buffer.detach().clone()) for buffer in parts.model.buffers()]
    training = parts.model.training
    python, numpy_state = random.getstate(), np.random.get_state()
    losses = []
    with torch.random.fork_rng(devices.gpus_of(device), device_type=devices.kind_of(device)), torch.no_grad():
        before = _random_states(device)
        parts.model.train()
        for _ in range(2):
            losses.append(float(parts.loss(call_model(parts.model, inputs), targets)))
            for buffer, value in buffers:
                buffer.copy_(value)
        drawn = _random_states(device) != before
    parts.model.train(training)
    random.setstate(python)
    np.random.set_state(numpy_state)
    apart = abs(losses[0] - losses[1])
    if math.isfinite(apart) and (apart > RANDOM * abs(losses[0]) or (drawn and apart)):
        raise TrialError("the model's forward pass is still random in the gate, where every rank would draw numbers of "
                         "its own: let the workload's TrainingParts.without_randomness turn its random layers off "
                         "(torch's dropout modules are off already)")


def _random_states(device: str) -> list[Any]:
    """Return the states of the generators that a layer may draw from, comparable."""
    numpy_state: Any = np.random.get_state()
    return [*(bytes(devices.random_state(place).numpy()) for place in dict.fromkeys(("cpu", device))),
            random.getstate(), bytes(numpy_state[1]), numpy_state[2]]


def cut_dropout(model: torch.nn.Module) -> None:
    """Set the probability of torch's dropout modules to 0: every rank draws its own masks, so two engines differ."""
    import torch

    for module in model.modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.p = 0.0
        elif isinstance(module, torch.nn.MultiheadAttention):
            module.dropout = 0.0


def keep_rank_0_buffers(model: torch.nn.Module, ranks: int) -> None:
    """Let only every `ranks`-th forward pass change the buffers of the reference: those of rank 0's micro-batches.

    Running statistics of a data-parallel model are rank 0's. In training they do not enter the outputs, so the
    gradients of the reference stay those of all micro-batches.
    """
    kept: list[torch.Tensor] = []
    passes = 0

    def before(module: torch.nn.Module, _: Any) -> None:
        kept[:] = [buffer.detach().clone() for buffer in module.buffers()] if module.training else []

    def after(module: torch.nn.Module, _: Any, __: Any) -> None:
        nonlocal passes
        if not module.training:
            return
        if passes % ranks:
            for buffer, value in zip(module.buffers(), kept, strict=True):
                buffer.data.copy_(value)  # through `data`: autograd has saved the buffer and would refuse
        passes += 1

    model.register_forward_pre_hook(before)
    model.register_forward_hook(after)
