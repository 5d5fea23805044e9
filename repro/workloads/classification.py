"""Loss, metric and initial weights of classifiers; the weights depend on the seed alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from repro.core.random_streams import Streams


def loss(outputs: torch.Tensor, targets: torch.Tensor, label_smoothing: float = 0.0) -> torch.Tensor:
    """Return the mean cross entropy, in float32 for every precision of the model."""
    return functional.cross_entropy(outputs.float(), targets, label_smoothing=label_smoothing)


def top1(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return how many samples have their target as the largest output."""
    return (outputs.argmax(dim=1) == targets).sum()


def top5(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return how many samples have their target among the five largest outputs."""
    places = outputs.float().topk(min(5, outputs.shape[1]), dim=1).indices
    return (places == targets[:, None]).any(dim=1).sum()


def initialised(make: Callable[[], nn.Module], streams: Streams) -> nn.Module:
    """Return the module that `make` builds, on the CPU, with weights from the stream `init`.

    The weights are drawn on the CPU in float32 from torch's own generator, whose state is restored. Engine, world size,
    device and precision therefore cannot change them, and later draws do not depend on the size of the model.
    """
    kind = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float32)
        # Only the CPU's generator: seeding by torch.manual_seed would touch the devices' too.
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            torch.default_generator.manual_seed(streams.seed("init"))
            return make()
    finally:
        torch.set_default_dtype(kind)
