"""Networks for images. Every direct child of a network is one block, which an engine may wrap."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import nn
from torch.nn import functional


def conv_net(
    channels: int, widths: Sequence[int], classes: int, norm: Literal["group", "batch"]
) -> nn.Sequential:
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
        normalise = nn.BatchNorm2d(width) if norm == "batch" else nn.GroupNorm(max(1, width // 8), width)
        layers += [nn.Conv2d(before, width, 3, padding=1, bias=False), normalise, nn.ReLU()]
        if stage < len(widths) - 1:
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes))


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
        self.first = _conv_relu(before, width, stride)
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
        "stem": _conv_relu(3, width),
        "stage1": nn.Sequential(_conv_relu(width, 2 * width), nn.MaxPool2d(2)),
        "stage1_residual": Residual(nn.Sequential(_conv_relu(2 * width, 2 * width), _conv_relu(2 * width, 2 * width))),
        "stage2": nn.Sequential(_conv_relu(2 * width, 4 * width), nn.MaxPool2d(2)),
        "stage3": nn.Sequential(_conv_relu(4 * width, 8 * width), nn.MaxPool2d(2)),
        "stage3_residual": Residual(nn.Sequential(_conv_relu(8 * width, 8 * width), _conv_relu(8 * width, 8 * width))),
        "head": nn.Sequential(nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(8 * width, classes, bias=False),
                              Scale(0.125)),
    }, "fan_in")


def resnet(depth: int, classes: int, width: int = 16) -> nn.Module:
    """Return the ResNet of depth 6n + 2 for CIFAR-10 (He et al. 2016, section 4.2): three stages of n blocks."""
    blocks: dict[str, nn.Module] = {"stem": _conv_relu(3, width)}
    before = width
    for stage in range(3):
        for block in range((depth - 2) // 6):
            stride = 2 if stage and not block else 1
            blocks[f"stage{stage + 1}_block{block + 1}"] = BasicBlock(before, width << stage, stride)
            before = width << stage
    blocks["head"] = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))
    return _named(blocks, "fan_in")


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
    }, "fan_in")


SMALL: dict[str, Callable[[int, int], nn.Module]] = {
    "resnet9": resnet9,
    "resnet20": lambda classes, width: resnet(20, classes, width),
    "resnet32": lambda classes, width: resnet(32, classes, width),
    "nin": nin,
}
"""Name -> (classes, width) -> network with initial weights."""


def _conv_relu(before: int, width: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(before, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())


def _mlpconv(before: int, kernel: int, widths: tuple[int, int, int]) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for width, size in zip(widths, (kernel, 1, 1), strict=True):
        layers += [nn.Conv2d(before, width, size, padding=size // 2), nn.ReLU()]
        before = width
    return layers


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions with a shortcut; a stride is in the 3 x 3 ("v1.5"), not in the first."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = 4 * width
        self.inner = nn.Sequential(_conv(before, width, 1), nn.ReLU(), _conv(width, width, 3, stride), nn.ReLU(),
                                   _conv(width, after, 1))
        # Goyal et al. 2017: the last normalisation starts at 0, so that a block starts as its shortcut.
        nn.init.zeros_(self.inner[-1][1].weight)  # type: ignore[index]
        self.short = _conv(before, after, 1, stride) if stride != 1 or before != after else nn.Identity()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.short(inputs) + self.inner(inputs))


class Inception(nn.Module):
    """Four branches whose channels are joined (Szegedy et al. 2015, figure 2b)."""

    def __init__(self, before: int, one: int, three: tuple[int, int], five: tuple[int, int], pool: int) -> None:
        super().__init__()
        self.branches = nn.ModuleDict({
            "one": _relu(before, one, 1),
            "three": nn.Sequential(_relu(before, three[0], 1), _relu(*three, 3)),
            "five": nn.Sequential(_relu(before, five[0], 1), _relu(*five, 5)),
            "pool": nn.Sequential(nn.MaxPool2d(3, 1, 1), _relu(before, pool, 1)),
        })

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.cat([branch(inputs) for branch in self.branches.values()], dim=1)


def resnet50(classes: int) -> nn.Module:
    """Return ResNet-50 v1.5 (He et al. 2016, table 1, with the stride in the 3 x 3 convolution, as MLPerf has it)."""
    blocks: dict[str, nn.Module] = {"stem": nn.Sequential(_conv(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))}
    before = 64
    for stage, (width, count) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), 1):
        for block in range(1, count + 1):
            stride = 2 if stage > 1 and block == 1 else 1
            blocks[f"stage{stage}_block{block}"] = Bottleneck(before, width, stride)
            before = 4 * width
    head = nn.Linear(before, classes)
    nn.init.normal_(head.weight, std=0.01)
    nn.init.zeros_(head.bias)
    return _named({**blocks, "head": nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)}, "fan_out")


def alexnet_bn(classes: int) -> nn.Module:
    """Return AlexNet in one tower (Krizhevsky 2014) with batch normalisation after each convolution instead of the
    normalisation over channels, as in the large-batch work of You et al. 2017."""
    blocks: dict[str, nn.Module] = {}
    before = 3
    for number, (width, size, stride, pad, pool) in enumerate(
            ((64, 11, 4, 2, True), (192, 5, 1, 2, True), (384, 3, 1, 1, False), (256, 3, 1, 1, False),
             (256, 3, 1, 1, True)), 1):
        conv = nn.Conv2d(before, width, size, stride, pad, bias=False)
        blocks[f"stage{number}"] = nn.Sequential(
            conv, nn.BatchNorm2d(width), nn.ReLU(), *([nn.MaxPool2d(3, 2)] if pool else []))
        before = width
    blocks["flat"] = nn.Sequential(nn.AdaptiveAvgPool2d(6), nn.Flatten(), nn.Dropout(0.5))
    return _named({**blocks, **_dense(256 * 36, classes)}, "fan_out")


def vgg16(classes: int) -> nn.Module:
    """Return VGG-16, configuration D of Simonyan and Zisserman 2015."""
    blocks: dict[str, nn.Module] = {}
    before = 3
    for stage, (width, count) in enumerate(((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)), 1):
        layers: list[nn.Module] = []
        for _ in range(count):
            layers.append(_relu(before, width, 3))
            before = width
        blocks[f"stage{stage}"] = nn.Sequential(*layers, nn.MaxPool2d(2))
    blocks["flat"] = nn.Sequential(nn.AdaptiveAvgPool2d(7), nn.Flatten())
    return _named({**blocks, **_dense(512 * 49, classes)}, "fan_in")


def googlenet(classes: int) -> nn.Module:
    """Return GoogLeNet (Szegedy et al. 2015, table 1) without its auxiliary classifiers."""
    table = {  # 1 x 1; 3 x 3 reduced and full; 5 x 5 reduced and full; after pooling
        "3a": (192, 64, (96, 128), (16, 32), 32), "3b": (256, 128, (128, 192), (32, 96), 64),
        "4a": (480, 192, (96, 208), (16, 48), 64), "4b": (512, 160, (112, 224), (24, 64), 64),
        "4c": (512, 128, (128, 256), (24, 64), 64), "4d": (512, 112, (144, 288), (32, 64), 64),
        "4e": (528, 256, (160, 320), (32, 128), 128), "5a": (832, 256, (160, 320), (32, 128), 128),
        "5b": (832, 384, (192, 384), (48, 128), 128),
    }
    blocks: dict[str, nn.Module] = {
        "stem": nn.Sequential(
            _relu(3, 64, 7, 2), nn.MaxPool2d(3, 2, ceil_mode=True), nn.LocalResponseNorm(5),
            _relu(64, 64, 1), _relu(64, 192, 3), nn.LocalResponseNorm(5), nn.MaxPool2d(3, 2, ceil_mode=True)),
    }
    for name, sizes in table.items():
        blocks[f"inception{name}"] = Inception(*sizes)
        if name in ("3b", "4e"):
            blocks[f"pool{name[0]}"] = nn.MaxPool2d(3, 2, ceil_mode=True)
    blocks["head"] = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.4), nn.Linear(1024, classes))
    return _named(blocks, "fan_in")


LARGE: dict[str, Callable[[int], nn.Module]] = {
    "resnet50": resnet50, "alexnet_bn": alexnet_bn, "googlenet": googlenet, "vgg16": vgg16,
}
"""Name -> classes -> network with initial weights."""


def _named(blocks: dict[str, nn.Module], mode: Literal["fan_in", "fan_out"]) -> nn.Module:
    """Return the blocks in sequence, convolutions with the weights of He et al. (2015).

    Args:
        mode: "fan_out" where every convolution is normalised; else "fan_in", which keeps the size of what goes forward.
    """
    for module in (module for block in blocks.values() for module in block.modules()):
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode=mode, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return nn.Sequential(OrderedDict(blocks))


def _conv(before: int, width: int, size: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(before, width, size, stride, size // 2, bias=False), nn.BatchNorm2d(width))


def _relu(before: int, width: int, size: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(before, width, size, stride, size // 2), nn.ReLU())


def _dense(before: int, classes: int) -> dict[str, nn.Module]:
    layers = [nn.Linear(before, 4096), nn.Linear(4096, 4096), nn.Linear(4096, classes)]
    for layer in layers:
        nn.init.normal_(layer.weight, std=0.01)
        nn.init.zeros_(layer.bias)
    return {"dense1": nn.Sequential(layers[0], nn.ReLU(), nn.Dropout(0.5)),
            "dense2": nn.Sequential(layers[1], nn.ReLU(), nn.Dropout(0.5)), "dense3": layers[2]}
