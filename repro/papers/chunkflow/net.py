"""Networks that run on a chunk: the identity, and a small convolutional net with fixed weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np

from repro.core.errors import UsageError

NetName = Literal["identity", "conv"]
NETS: tuple[str, ...] = get_args(NetName)
SEED = 20190423
"""Of the weights; they are the same everywhere."""
CHANNELS = 4
DILATIONS = (1, 2, 4)
RADIUS = sum(DILATIONS)
"""Voxels on each side that an output voxel of `conv` depends on."""

Net = Callable[[np.ndarray], np.ndarray]


def net(name: NetName, device: str = "cpu") -> Net:
    """Return a function from a volume to one of the same shape; `conv` pads with zeros outside of what it is given."""
    if name == "identity":
        return lambda data: data
    model = conv_net(device)

    def infer(data: np.ndarray) -> np.ndarray:
        import torch

        with torch.inference_mode():
            given = torch.from_numpy(np.ascontiguousarray(data, dtype=np.float32)).to(device)
            found: np.ndarray = model(given[None, None])[0, 0].cpu().numpy()
        return found

    return infer


def conv_net(device: str) -> Any:
    """Return three 3-D convolutions of 3x3x3, dilated 1, 2 and 4, float32, with weights from `SEED`.

    Raises:
        UsageError: `device` is no CPU, and there is no GPU.
    """
    import torch
    from torch import nn

    if torch.device(device).type != "cpu" and not torch.cuda.is_available():
        raise UsageError(f"device {device}: this machine has no usable GPU; use cpu")
    generator = torch.Generator().manual_seed(SEED)
    layers: list[nn.Module] = []
    for place, dilation in enumerate(DILATIONS):
        inputs, outputs = 1 if place == 0 else CHANNELS, CHANNELS if place < len(DILATIONS) - 1 else 1
        layer = nn.Conv3d(inputs, outputs, 3, padding=dilation, dilation=dilation)
        for parameter in layer.parameters():
            scale = (27 * inputs) ** -0.5
            parameter.data = scale * torch.randn(parameter.shape, generator=generator)
        layers += [layer, nn.Tanh()]
    return nn.Sequential(*layers[:-1]).to(device).eval()
