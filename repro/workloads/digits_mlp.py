"""Handwritten digits with wide fully connected layers: little to compute, megabytes of gradient to communicate."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from repro.core.random_streams import Streams
from repro.seams.training import DataIdentity, Direction, LayerShape, TrainingParts, Workload
from repro.workloads import digits_data

if TYPE_CHECKING:
    from torch import nn


class DigitsMlp(Workload):
    """64 pixels through `depth` hidden layers of `hidden` units: by default 2.2 million weights, 8.7 MB of gradient."""

    title: ClassVar[str] = "handwritten digits, wide MLP"
    metrics: ClassVar[Mapping[str, Direction]] = {"top1": "higher"}
    ranges: ClassVar[Mapping[str, tuple[float, float]]] = {"top1": (0.0, 1.0)}
    reference_samples_per_second: ClassVar[float] = 3400.0
    test_views: ClassVar[int | None] = 1
    sha256: ClassVar[str] = digits_data.SHA256

    hidden: int = Field(default=1024, ge=8, le=16384)
    depth: int = Field(default=3, ge=1, le=16)
    augment: bool = False
    """Move each training image by at most one pixel, drawn again in every epoch; this model then needs four times as
    long."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Share of a target that is spread over all classes, in the training loss."""

    @property
    def train_samples(self) -> int:
        return digits_data.TRAIN_SAMPLES

    @property
    def eval_samples(self) -> int:
        return digits_data.EVAL_SAMPLES

    @property
    def layer_shapes(self) -> tuple[LayerShape, ...]:
        widths = (digits_data.SIDE**2, *[self.hidden] * self.depth, digits_data.CLASSES)
        return tuple(LayerShape(before + 1, after, bias=True) for before, after in pairwise(widths))

    @property
    def tensor_count(self) -> int:
        return 2 * (self.depth + 1)

    def identity(self) -> DataIdentity:
        return digits_data.identity(self.sha256)

    def build(self, streams: Streams, device: str) -> TrainingParts:
        from repro.workloads import classification
        from repro.workloads.digit_batches import DigitBatches

        batches = DigitBatches(self.sha256, streams, device, augment=self.augment)
        return TrainingParts(
            model=classification.initialised(self._network, streams),
            loss=partial(classification.loss, label_smoothing=self.label_smoothing),
            scores={"top1": classification.top1},
            train_batch=batches.train,
            eval_batch=batches.evaluation,
            synthetic_batch=batches.synthetic,
            open_data=batches.open,
            fed=batches.fed,
            draws=batches.draws if self.augment else None,
        )

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
