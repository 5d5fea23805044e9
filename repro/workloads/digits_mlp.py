"""Handwritten digits with wide fully connected layers: little to compute, megabytes of gradient to communicate."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from repro.core.random_streams import Streams
from repro.seams.training import LayerShape, TrainingParts
from repro.workloads import digits_data
from repro.workloads.digits_workload import DigitsWorkload

if TYPE_CHECKING:
    from torch import nn


class DigitsMlp(DigitsWorkload):
    """64 pixels through `depth` hidden layers of `hidden` units: by default 2.2 million weights, 8.7 MB of gradient."""

    title: ClassVar[str] = "handwritten digits, wide MLP"
    reference_samples_per_second: ClassVar[float] = 3400.0

    hidden: int = Field(default=1024, ge=8, le=16384)
    depth: int = Field(default=3, ge=1, le=16)
    augment: bool = False
    """Move each training image by at most one pixel, drawn again in every epoch; this model then needs four times as
    long."""

    @property
    def layer_shapes(self) -> tuple[LayerShape, ...]:
        widths = (digits_data.SIDE**2, *[self.hidden] * self.depth, digits_data.CLASSES)
        return tuple(LayerShape(before + 1, after, bias=True) for before, after in pairwise(widths))

    @property
    def tensor_count(self) -> int:
        return 2 * (self.depth + 1)

    def build(self, streams: Streams, device: str) -> TrainingParts:
        return self.parts(self._network, streams, device)

    def _network(self) -> nn.Module:
        from torch import nn

        layers: list[nn.Module] = [nn.Flatten()]
        for width in (digits_data.SIDE**2, *[self.hidden] * (self.depth - 1)):
            linear = nn.Linear(width, self.hidden)
            # He et al. (2015): torch's own default shrinks the signal from layer to layer.
            nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
            nn.init.zeros_(linear.bias)
            layers += [linear, nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(self.hidden, digits_data.CLASSES))
