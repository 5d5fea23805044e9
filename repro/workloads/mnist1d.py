"""MNIST-1D with its authors' small convolutional network; the data are made in a second."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from repro.core.random_streams import Streams
from repro.seams.training import DataIdentity, Direction, LayerShape, TrainingParts, Workload
from repro.workloads import mnist1d_data

if TYPE_CHECKING:
    from torch import nn


class Mnist1d(Workload):
    """Three convolutions over 40 points, as in the paper, which reports about 94 % for this network and 68 % for an
    MLP."""

    title: ClassVar[str] = "MNIST-1D, small CNN"
    unit: ClassVar[str] = "signals"
    metrics: ClassVar[Mapping[str, Direction]] = {"top1": "higher"}
    ranges: ClassVar[Mapping[str, tuple[float, float]]] = {"top1": (0.0, 1.0)}
    reference_samples_per_second: ClassVar[float] = 20000.0
    test_views: ClassVar[int | None] = 1
    preload: ClassVar[tuple[str, ...]] = ("scipy.ndimage",)
    sha256: ClassVar[str] = mnist1d_data.SHA256

    channels: int = Field(default=25, ge=1, le=1024, description="of each convolution")
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Share of a target that is spread over all classes, in the training loss."""

    @property
    def train_samples(self) -> int:
        return mnist1d_data.TRAIN_SAMPLES

    @property
    def eval_samples(self) -> int:
        return mnist1d_data.EVAL_SAMPLES

    @property
    def layer_shapes(self) -> tuple[LayerShape, ...]:
        wide = self.channels
        convolutions = ((5 + 1, 19), (3 * wide + 1, 10), (3 * wide + 1, 5))  # of 40 points each halves them
        return (*(LayerShape(inputs, wide, points, kernel=True, bias=True) for inputs, points in convolutions),
                LayerShape(5 * wide + 1, mnist1d_data.CLASSES, bias=True))

    @property
    def tensor_count(self) -> int:
        return 8

    def identity(self) -> DataIdentity:
        return mnist1d_data.identity(self.sha256)

    def build(self, streams: Streams, device: str) -> TrainingParts:
        from repro.workloads import classification
        from repro.workloads.mnist1d_batches import SignalBatches

        batches = SignalBatches(self.sha256, device)
        return TrainingParts(
            model=classification.initialised(self._network, streams),
            loss=partial(classification.loss, label_smoothing=self.label_smoothing),
            scores={"top1": classification.top1},
            train_batch=batches.train,
            eval_batch=batches.evaluation,
            synthetic_batch=batches.synthetic,
            open_data=batches.open,
            fed=batches.fed,
        )

    def _network(self) -> nn.Module:
        from torch import nn

        wide = self.channels
        halvings = [
            nn.Conv1d(1, wide, 5, stride=2, padding=1), nn.ReLU(),
            nn.Conv1d(wide, wide, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv1d(wide, wide, 3, stride=2, padding=1), nn.ReLU(),
        ]
        return nn.Sequential(*halvings, nn.Flatten(), nn.Linear(5 * wide, mnist1d_data.CLASSES))
