"""Handwritten digits with a small convolutional network: real data, trained to 97 % in a second on one core."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Literal

from repro.core.random_streams import Streams
from repro.seams.training import LayerShape, TrainingParts
from repro.workloads import digits_data
from repro.workloads.digits_workload import DigitsWorkload

WIDTHS = (32, 64, 128)
"""Channels of the three convolutions."""


class Digits(DigitsWorkload):
    """Three convolutions over 8 x 8 grey pixels; compute-heavy, with few weights to communicate."""

    title: ClassVar[str] = "handwritten digits, small CNN"
    reference_samples_per_second: ClassVar[float] = 10000.0

    norm: Literal["group", "batch"] = "group"
    """"batch" depends on how many samples a rank sees: its mathematics changes with the world size."""
    augment: bool = True
    """Move each training image by at most one pixel, drawn again in every epoch."""

    @property
    def layer_shapes(self) -> tuple[LayerShape, ...]:
        sides = enumerate(zip((1, *WIDTHS[:-1]), WIDTHS, strict=True))
        return (*(LayerShape(9 * before, width, (digits_data.SIDE >> stage)**2, kernel=True)
                  for stage, (before, width) in sides),
                LayerShape(WIDTHS[-1] + 1, digits_data.CLASSES, bias=True))

    @property
    def tensor_count(self) -> int:
        return 3 * len(WIDTHS) + 2

    def build(self, streams: Streams, device: str) -> TrainingParts:
        from repro.workloads import conv_net

        make = partial(conv_net.conv_net, 1, WIDTHS, digits_data.CLASSES, self.norm)
        return self.parts(make, streams, device)
