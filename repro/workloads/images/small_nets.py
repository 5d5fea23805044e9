"""Networks for images of 32 x 32 pixels. Every direct child of a network is one block, which an engine may wrap."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional


class Scale(nn.Module):
    """Multiply by a constant."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs * self.factor


class Residual(nn.Module):
    """x + f(x)."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = inputs + self.inner(inputs)
        return found


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions and a shortcut without weights (He et al. 2016, option A): every second pixel, and zeros
    for the channels that are added."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = _conv(before, width, stride)
        self.second = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width))
        self.stride, self.added = stride, width - before

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        short = inputs[:, :, ::self.stride, ::self.stride]
        if self.added:
            short = functional.pad(short, (0, 0, 0, 0, self.added // 2, self.added - self.added // 2))
        return functional.relu(short + self.second(self.first(inputs)))


def resnet9(classes: int, width: int = 64) -> nn.Module:
    """Return a net like the small ResNet of the DAWNBench entries of 2018 (D. Page, "How to train your ResNet"): eight
    3 x 3 convolutions of 1, 2, 4 and 8 times `width` channels, two residual blocks, and a linear layer."""
    return _named({
        "stem": _conv(3, width),
        "stage1": nn.Sequential(_conv(width, 2 * width), nn.MaxPool2d(2)),
        "stage1_residual": Residual(nn.Sequential(_conv(2 * width, 2 * width), _conv(2 * width, 2 * width))),
        "stage2": nn.Sequential(_conv(2 * width, 4 * width), nn.MaxPool2d(2)),
        "stage3": nn.Sequential(_conv(4 * width, 8 * width), nn.MaxPool2d(2)),
        "stage3_residual": Residual(nn.Sequential(_conv(8 * width, 8 * width), _conv(8 * width, 8 * width))),
        "head": nn.Sequential(nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(8 * width, classes, bias=False),
                              Scale(0.125)),
    })


def resnet(depth: int, classes: int, width: int = 16) -> nn.Module:
    """Return the ResNet of depth 6n + 2 for CIFAR-10 (He et al. 2016, section 4.2): three stages of n blocks."""
    each, rest = divmod(depth - 2, 6)
    assert rest == 0, "depth is 6n + 2"
    blocks: dict[str, nn.Module] = {"stem": _conv(3, width)}
    before = width
    for stage in range(3):
        for block in range(each):
            stride = 2 if stage and not block else 1
            blocks[f"stage{stage + 1}_block{block + 1}"] = BasicBlock(before, width << stage, stride)
            before = width << stage
    blocks["head"] = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))
    return _named(blocks)


def nin(classes: int, width: int = 192) -> nn.Module:
    """Return Network in Network for CIFAR-10 (Lin, Chen and Yan 2014): three stages, each a convolution and two of
    1 x 1, with dropout of 0.5 between them."""
    return _named({
        "stage1": nn.Sequential(*_mlpconv(3, 5, (width, width * 5 // 6, width // 2)),
                                nn.MaxPool2d(3, 2, ceil_mode=True), nn.Dropout(0.5)),
        "stage2": nn.Sequential(*_mlpconv(width // 2, 5, (width, width, width)),
                                nn.AvgPool2d(3, 2, ceil_mode=True), nn.Dropout(0.5)),
        "stage3": nn.Sequential(*_mlpconv(width, 3, (width, width, classes))),
        "head": nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    })


NETS: dict[str, Callable[[int, int], nn.Module]] = {
    "resnet9": resnet9,
    "resnet20": lambda classes, width: resnet(20, classes, width),
    "resnet32": lambda classes, width: resnet(32, classes, width),
    "nin": nin,
}
"""Name -> (classes, width) -> network with initial weights."""


def _named(blocks: dict[str, nn.Module]) -> nn.Module:
    """Return the blocks in sequence, their weights drawn as He et al. (2015) do for convolutions before a ReLU."""
    for module in (module for block in blocks.values() for module in block.modules()):
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return nn.Sequential(OrderedDict(blocks))


def _conv(before: int, width: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(before, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())


def _mlpconv(before: int, kernel: int, widths: tuple[int, int, int]) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for width, size in zip(widths, (kernel, 1, 1), strict=True):
        layers += [nn.Conv2d(before, width, size, padding=size // 2), nn.ReLU()]
        before = width
    return layers
