"""A workload: a model, its data, and how it is judged. Replace the spirals and the network by yours.

The rules that `repro gate` checks: initial weights come from the stream `init` alone, every other draw from a stream
too; `train_batch` returns the same bytes for the same sample on every rank; nothing reads training data before
`open_data`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from repro.core.errors import TrialError
from repro.core.random_streams import Streams
from repro.seams.training import DataIdentity, Direction, TrainingParts, Workload

TRAIN, TEST, CLASSES = 4096, 1024, 3
SHA256 = "a229a2174f76be91949deb09db2759068018b6527a8a45ebd74b1fef5617c87f"
"""Of the data, as `data` returns them: a run stops if they are others."""


def data() -> tuple[Any, Any]:
    """Return points [n, 2] float32 and classes [n] int64 of all samples, the training samples first."""
    import numpy as np  # heavy imports stand inside functions: `repro plan` needs none of them

    draw = np.random.default_rng(1)
    classes = draw.integers(CLASSES, size=TRAIN + TEST)
    radius = draw.uniform(0.2, 1.0, TRAIN + TEST)
    angle = 4.0 * radius + 2 * np.pi * classes / CLASSES + draw.normal(0.0, 0.1, TRAIN + TEST)
    points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return points.round(4).astype(np.float32), classes.astype(np.int64)


def checked() -> tuple[Any, Any]:
    """Return the data if they are those that `SHA256` names."""
    points, classes = data()
    found = hashlib.sha256(points.tobytes() + classes.tobytes()).hexdigest()
    if found != SHA256:
        raise TrialError(f"the data have the sha256 {found}, expected {SHA256}")
    return points, classes


class CLASS(Workload):
    """Points of three spirals, told apart by a network of two layers."""

    title: ClassVar[str] = "three spirals, MLP"
    unit: ClassVar[str] = "points"
    metrics: ClassVar[Mapping[str, Direction]] = {"top1": "higher"}
    ranges: ClassVar[Mapping[str, tuple[float, float]]] = {"top1": (0.0, 1.0)}
    synthetic: ClassVar[bool] = True  # generated data: reports say so; remove it when yours are real
    reference_samples_per_second: ClassVar[float] = 50000.0  # for the estimate of `repro plan` only
    test_views: ClassVar[int | None] = 1

    width: int = Field(default=64, ge=1, le=4096, description="of each layer")  # an option that suites can set
    train_samples = property(lambda self: TRAIN)
    eval_samples = property(lambda self: TEST)

    def identity(self) -> DataIdentity:
        """Return what the data are; it may read all of them."""
        checked()
        return DataIdentity("three-spirals", "1", SHA256, TRAIN, TEST, licence="generated", source="this file")

    def build(self, streams: Streams, device: str) -> TrainingParts:
        """Return the model on the CPU, and functions that feed and score it on `device`."""
        import torch
        from torch import nn

        from repro.workloads import classification

        held: dict[str, Any] = {}

        def open_data() -> str:
            held["points"], held["classes"] = (torch.from_numpy(each).to(device) for each in checked())
            return SHA256

        def batch(indices: Any) -> tuple[Any, Any]:
            rows = torch.from_numpy(indices).to(device)
            return held["points"][rows], held["classes"][rows]

        def network() -> nn.Module:
            return nn.Sequential(nn.Linear(2, self.width), nn.ReLU(), nn.Linear(self.width, self.width), nn.ReLU(),
                                 nn.Linear(self.width, CLASSES))

        return TrainingParts(
            model=classification.initialised(network, streams),
            loss=classification.loss,                             # mean over the batch
            scores={"top1": classification.top1},                 # sum over the batch
            train_batch=lambda epoch, indices: batch(indices),    # augmentation would draw from streams, by epoch
            eval_batch=lambda indices: batch(indices + TRAIN),
            synthetic_batch=lambda n: (torch.zeros(n, 2, device=device),
                                       torch.zeros(n, dtype=torch.int64, device=device)),
            open_data=open_data,
        )
