"""Synthetic images of any size with a network of any size: for throughput and for experiments, never a result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from repro.core.random_streams import Streams
from repro.seams.training import DataIdentity, Direction, TrainingParts, Workload
from repro.workloads.synthetic_images import Recipe, sha256


class Synthetic(Workload):
    """Each class is a random image, each sample that image plus noise; the options alone determine the data."""

    title: ClassVar[str] = "synthetic images, CNN of chosen size"
    metrics: ClassVar[Mapping[str, Direction]] = {"top1": "higher"}
    ranges: ClassVar[Mapping[str, tuple[float, float]]] = {"top1": (0.0, 1.0)}
    synthetic: ClassVar[bool] = True
    reference_samples_per_second: ClassVar[float] = 500.0
    test_views: ClassVar[int | None] = 1

    image_size: int = Field(default=32, ge=4, le=512)
    """Pixels a side; halved at each stage but the last."""
    channels: int = Field(default=3, ge=1, le=16)
    classes: int = Field(default=10, ge=2, le=256)
    samples: int = Field(default=4096, ge=1, le=10_000_000)
    """Training samples."""
    held_out: int = Field(default=512, ge=1, le=1_000_000)
    """Evaluation samples."""
    width: int = Field(default=32, ge=8, le=1024, multiple_of=8)
    """Channels of the first convolution; each stage doubles them."""
    depth: int = Field(default=3, ge=1, le=8)
    """Convolutions."""
    data_seed: int = Field(default=0, ge=0)
    """Determines the data set, which, like a real one, does not change with the trial's seed."""

    @property
    def train_samples(self) -> int:
        return self.samples

    @property
    def eval_samples(self) -> int:
        return self.held_out

    @property
    def tensor_count(self) -> int:
        return 3 * self.depth + 2

    def identity(self) -> DataIdentity:
        return DataIdentity(
            name="made-up-images",
            version="1",
            sha256=sha256(self._recipe()),
            train_samples=self.samples,
            eval_samples=self.held_out,
            licence="none: no data",
            source="drawn from the options of the workload",
        )

    def build(self, streams: Streams, device: str) -> TrainingParts:
        from repro.workloads import classification, conv_net
        from repro.workloads.synthetic_batches import SyntheticBatches

        batches = SyntheticBatches(self._recipe(), device)
        widths = [self.width * 2**stage for stage in range(self.depth)]
        return TrainingParts(
            model=classification.initialised(
                lambda: conv_net.conv_net(self.channels, widths, self.classes, "group"), streams),
            loss=classification.loss,
            scores={"top1": classification.top1},
            train_batch=batches.train,
            eval_batch=batches.evaluation,
            synthetic_batch=batches.synthetic,
            open_data=batches.open,
            fed=batches.fed,
        )

    def _recipe(self) -> Recipe:
        return Recipe(
            self.image_size, self.channels, self.classes, self.samples, self.held_out, self.data_seed
        )
