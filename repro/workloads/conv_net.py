"""A small convolutional network for images; each stage halves the image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import nn

Norm = Literal["group", "batch"]


def conv_net(channels: int, widths: Sequence[int], classes: int, norm: Norm) -> nn.Sequential:
    """Return 3 x 3 convolutions, one per stage, with normalisation, ReLU and 2 x 2 pooling, then a linear layer.

    Args:
        channels: of the input images.
        widths: channels of each stage.
        classes: number of outputs.
        norm: "group" normalises within a sample, so the mathematics does not depend on how a batch is divided over
            ranks; "batch" normalises over the samples that one rank sees.
    """
    layers: list[nn.Module] = []
    for stage, width in enumerate(widths):
        before = widths[stage - 1] if stage else channels
        layers += [nn.Conv2d(before, width, 3, padding=1, bias=False), _norm(norm, width), nn.ReLU()]
        if stage < len(widths) - 1:
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes))


def _norm(norm: Norm, width: int) -> nn.Module:
    if norm == "batch":
        return nn.BatchNorm2d(width)
    return nn.GroupNorm(max(1, width // 8), width)
