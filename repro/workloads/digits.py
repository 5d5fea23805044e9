"""Handwritten digits with a small convolutional network: real data, trained to 97 % in a second on one core."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import ClassVar, Literal

from pydantic import Field

from repro.core.random_streams import Streams
from repro.seams.training import DataIdentity, Direction, LayerShape, TrainingParts, Workload
from repro.workloads import digits_data

WIDTHS = (32, 64, 128)
"""Channels of the three convolutions."""


class Digits(Workload):
    """Three convolutions over 8 x 8 grey pixels; compute-heavy, with few weights to communicate."""

    title: ClassVar[str] = "handwritten digits, small CNN"
    metrics: ClassVar[Mapping[str, Direction]] = {"top1": "higher"}
    ranges: ClassVar[Mapping[str, tuple[float, float]]] = {"top1": (0.0, 1.0)}
    reference_samples_per_second: ClassVar[float] = 10000.0
    test_views: ClassVar[int | None] = 1
    sha256: ClassVar[str] = digits_data.SHA256

    norm: Literal["group", "batch"] = "group"
    """"batch" depends on how many samples a rank sees: its mathematics changes with the world size."""
    augment: bool = True
    """Move each training image by at most one pixel, drawn again in every epoch."""
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
        sides = enumerate(zip((1, *WIDTHS[:-1]), WIDTHS, strict=True))
        return (*(LayerShape(9 * before, width, (digits_data.SIDE >> stage)**2, kernel=True)
                  for stage, (before, width) in sides),
                LayerShape(WIDTHS[-1] + 1, digits_data.CLASSES, bias=True))

    @property
    def tensor_count(self) -> int:
        return 3 * len(WIDTHS) + 2

    def identity(self) -> DataIdentity:
        return digits_data.identity(self.sha256)

    def build(self, streams: Streams, device: str) -> TrainingParts:
        from repro.workloads import classification, conv_net
        from repro.workloads.digit_batches import DigitBatches

        batches = DigitBatches(self.sha256, streams, device, augment=self.augment)
        model = classification.initialised(
            lambda: conv_net.conv_net(1, WIDTHS, digits_data.CLASSES, self.norm), streams)
        return TrainingParts(
            model=model,
            loss=partial(classification.loss, label_smoothing=self.label_smoothing),
            scores={"top1": classification.top1},
            train_batch=batches.train,
            eval_batch=batches.evaluation,
            synthetic_batch=batches.synthetic,
            open_data=batches.open,
            fed=batches.fed,
            draws=batches.draws if self.augment else None,
        )
