"""ImageNet, or other images in class folders, with ResNet-50 and older networks; and a synthetic twin without files."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from repro.core.random_streams import Streams
from repro.seams.training import Batch, DataIdentity, Direction, TrainingParts, Workload
from repro.workloads.data.workload import Counts, FileWorkload
from repro.workloads.imagenet_form import OFFICIAL, ImageNetForm, ImageReader, Stages, drawn, side_in
from repro.workloads.reading import InProcess, noise
from repro.workloads.synthetic import COARSE, Recipe, SyntheticBatches, digest, draw, drawn_identity

SMALLEST = {"resnet50": 32, "alexnet_bn": 64, "googlenet": 32, "vgg16": 32}
"""Fewest pixels a side that the layers of each network leave something of."""
UNREPEATABLE = {"alexnet_bn": "AdaptiveAvgPool2d", "vgg16": "AdaptiveAvgPool2d", "googlenet": "LocalResponseNorm"}
"""Layers without a deterministic kernel on GPUs."""


class ImageCounts(Counts):
    """Counts of images in class folders."""

    classes: int = Field(ge=2)


class _ImageNet(Workload):
    """Photographs of many classes; where they come from is the subclass's matter."""

    metrics: ClassVar[Mapping[str, Direction]] = {"top1": "higher", "top5": "higher"}
    ranges: ClassVar[Mapping[str, tuple[float, float]]] = {"top1": (0.0, 1.0), "top5": (0.0, 1.0)}
    test_views: ClassVar[int | None] = 1
    reference_samples_per_second: ClassVar[float] = 2.5
    eval_batch_size: ClassVar[int] = 128

    model: Literal["resnet50", "alexnet_bn", "googlenet", "vgg16"] = "resnet50"
    """resnet50: v1.5, 25.6 million weights; alexnet_bn: 61.1; googlenet: 7.0, without auxiliary classifiers; vgg16:
    138.4."""
    image_size: int = Field(default=224, ge=32, le=1024)
    """Pixels a side in evaluations, and in training unless `resizing` says otherwise."""
    resizing: tuple[tuple[int, int], ...] = Field(default=(), max_length=100)
    """Progressive resizing of training images: (first epoch, pixels a side), epochs ascending from 0. For example
    [[0, 128], [18, 224]]."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Share of a target that is spread over all classes, in the training loss."""

    @model_validator(mode="after")
    def _sizes(self) -> _ImageNet:
        epochs = [epoch for epoch, _ in self.resizing]
        if epochs and (epochs[0] != 0 or epochs != sorted(set(epochs))):
            raise ValueError("resizing: epochs must ascend from 0, for example [[0, 128], [18, 224]]")
        smallest = min(self.image_size, *(side for _, side in self.stages))
        if smallest < SMALLEST[self.model]:
            raise ValueError(f"{self.model} needs images of at least {SMALLEST[self.model]} pixels a side (given: "
                             f"{smallest})")
        if max(side for _, side in self.stages) > 1024:
            raise ValueError("resizing: images of at most 1024 pixels a side")
        return self

    @property
    def unrepeatable(self) -> str:
        return UNREPEATABLE.get(self.model, "")

    @property
    def stages(self) -> tuple[tuple[int, int], ...]:
        """(First epoch, pixels a side) of training images."""
        return self.resizing or ((0, self.image_size),)

    def _parts(self, classes: int, streams: Streams, functions: Mapping[str, Any]) -> TrainingParts:
        from repro.workloads import classification, nets

        return TrainingParts(
            model=classification.initialised(partial(nets.LARGE[self.model], classes), streams),
            loss=partial(classification.loss, label_smoothing=self.label_smoothing),
            scores={"top1": classification.top1, "top5": classification.top5}, unlike_samples=len(self.stages) > 1,
            **functions,
        )


class ImageNet(_ImageNet, FileWorkload):
    """Images in class folders, prepared by `repro data prepare imagenet`: ILSVRC2012, or any others."""

    title: ClassVar[str] = "ImageNet, images in class folders"
    reads_samples: ClassVar[bool] = True
    form: ClassVar[ImageNetForm] = ImageNetForm()
    data: ImageCounts = ImageCounts(**OFFICIAL)

    def build(self, streams: Streams, device: str) -> TrainingParts:
        reader = ImageReader(self.prepared(), streams, self.stages, self.image_size)
        side, classes = self.stages[0][1], self.data.classes
        return self._parts(classes, streams, {
            **InProcess(reader, device).functions(),
            "synthetic_batch": partial(noise, device, (3, side, side), classes),
            "draws": lambda epoch, indices: drawn(streams, epoch, self.train_samples)[indices]})


class ImageNetSynthetic(_ImageNet):
    """Images of a few blocks, of ImageNet's shape and number; accuracy on them says nothing. Nothing is decoded."""

    title: ClassVar[str] = "synthetic images in the shape of ImageNet"
    synthetic: ClassVar[bool] = True

    samples: int = Field(default=OFFICIAL["train_samples"], ge=1, le=100_000_000)
    """Training samples."""
    held_out: int = Field(default=OFFICIAL["eval_samples"], ge=1, le=10_000_000)
    """Evaluation samples."""
    classes: int = Field(default=OFFICIAL["classes"], ge=2, le=100_000)

    @property
    def train_samples(self) -> int:
        return self.samples

    @property
    def eval_samples(self) -> int:
        return self.held_out

    def identity(self) -> DataIdentity:
        return drawn_identity("imagenet-synthetic", self, digest(draw(self._recipe())))

    def build(self, streams: Streams, device: str) -> TrainingParts:
        batches = CoarseBatches(self._recipe(), self.stages, self.image_size, streams, device)
        return self._parts(self.classes, streams, batches.functions())

    def _recipe(self) -> Recipe:
        return Recipe(COARSE, 3, self.classes, self.samples, self.held_out, seed=0)


class CoarseBatches(SyntheticBatches):
    """Images of 4 x 4 blocks, so that a thousand classes and a million samples fit in memory."""

    def __init__(
        self, recipe: Recipe, stages: Stages, eval_side: int, streams: Streams, device: str
    ) -> None:
        super().__init__(recipe, streams, device)
        self._stages, self._eval_side = stages, eval_side

    def looked_up(self, epoch: int, indices: np.ndarray, draws: np.ndarray | None) -> Batch:
        return _enlarged(super().looked_up(epoch, indices, draws), side_in(self._stages, epoch))

    def evaluation(self, indices: np.ndarray) -> Batch:
        return _enlarged(super().evaluation(indices), self._eval_side)

    def synthetic(self, samples: int) -> Batch:
        return _enlarged(super().synthetic(samples), side_in(self._stages, 0))


def _enlarged(batch: Batch, side: int) -> Batch:
    from torch.nn import functional

    return functional.interpolate(batch[0], size=(side, side), mode="nearest"), batch[1]
