"""Handwritten digits with wide fully connected layers: little to compute, megabytes of gradient to communicate."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from repro.core.random_streams import Streams
from repro.seams.plugin import Setting
from repro.seams.training import LayerShape, TrainingParts
from repro.workloads import digits_data
from repro.workloads.digits import DigitsWorkload

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
    sleep_ms: float = Field(default=0.0, ge=0, le=1000)
    """Milliseconds a sample that every forward pass of training sleeps: computation that needs no processor, so that
    ranks that share one speed up. Emulated clusters only; the gate does not sleep."""

    def unsupported(self, setting: Setting) -> str | None:
        if self.sleep_ms and not setting.emulated:
            return "sleep_ms emulates computation, which only launcher fabric labels so; leave it out"
        return super().unsupported(setting)

    @property
    def layer_shapes(self) -> tuple[LayerShape, ...]:
        widths = (digits_data.SIDE**2, *[self.hidden] * self.depth, digits_data.CLASSES)
        return tuple(LayerShape(before + 1, after, bias=True) for before, after in pairwise(widths))

    @property
    def tensor_count(self) -> int:
        return 2 * (self.depth + 1)

    def build(self, streams: Streams, device: str) -> TrainingParts:

        parts = self.parts(self._network, streams, device)
        if self.sleep_ms:
            sleep = Sleep(self.sleep_ms / 1000)
            parts.model.register_forward_pre_hook(sleep)
            parts.without_randomness = lambda _: sleep.end()
        return parts

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


class Sleep:
    """A hook before the forward pass of a model in training mode; others, as in an evaluation, do not sleep."""

    def __init__(self, seconds_per_sample: float) -> None:
        self._seconds = seconds_per_sample

    def __call__(self, model: Any, inputs: tuple[Any, ...]) -> None:
        if model.training and self._seconds:
            time.sleep(self._seconds * len(inputs[0]))

    def end(self) -> None:
        """Sleep no more: the parity gate compares values, not times."""
        self._seconds = 0.0
