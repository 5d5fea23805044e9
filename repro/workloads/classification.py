"""What classifiers share: loss, metric, and initial weights that depend on the seed alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from repro.core.random_streams import Streams


def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy in float32, whatever the model computes in."""
    return functional.cross_entropy(outputs.float(), targets)


def top1(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """How many samples have their target as the largest output."""
    return (outputs.argmax(dim=1) == targets).sum()


def initialised(make: Callable[[], nn.Module], streams: Streams, device: str) -> nn.Module:
    """The module that `make` builds, its weights drawn from the stream `init`, on `device`.

    Drawn on the CPU in float32 from torch's own generator, whose state is put back: engine, world size, device and
    precision cannot change a bit of it, and nothing drawn later is shifted by the size of the model.
    """
    kind = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float32)
        # Only the CPU's generator: seeding by torch.manual_seed would touch the devices' too.
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            torch.default_generator.manual_seed(streams.seed("init"))
            module = make()
    finally:
        torch.set_default_dtype(kind)
    return module.to(device)
