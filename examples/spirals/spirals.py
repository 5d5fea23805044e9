"""A workload in one file: a small network tells two spirals apart."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from pydantic import Field

from repro.core.random_streams import Streams
from repro.seams.training import Batch, DataIdentity, Direction, TrainingParts, Workload

TRAIN, TEST = 2000, 500


class Spirals(Workload):
    """Which of two spirals a point lies on; the points follow from a formula."""

    title: ClassVar[str] = "two spirals, small network"
    unit: ClassVar[str] = "points"
    metrics: ClassVar[Mapping[str, Direction]] = {"top1": "higher"}
    reference_samples_per_second: ClassVar[float] = 100_000.0  # for the cost estimate of `repro plan` only
    train_samples = property(lambda self: TRAIN)
    eval_samples = property(lambda self: TEST)
    width: int = Field(default=32, ge=2)  # an option: `workload: {kind: "spirals.py:Spirals", width: 64}`

    def points(self) -> tuple[np.ndarray, np.ndarray, str]:
        random, side = np.random.default_rng(1), np.arange(TRAIN + TEST) % 2
        turn = random.uniform(0.5, 7.0, TRAIN + TEST)
        places = np.stack([turn * np.cos(turn + np.pi * side), turn * np.sin(turn + np.pi * side)], 1) / 7
        places = (places + random.normal(0, 0.01, places.shape)).astype(np.float32)
        return places, side, hashlib.sha256(places.tobytes() + side.tobytes()).hexdigest()

    def identity(self) -> DataIdentity:
        return DataIdentity("spirals", "1", self.points()[2], TRAIN, TEST, "none", "computed")

    def build(self, streams: Streams, device: str) -> TrainingParts:
        import torch
        from torch import nn

        from repro.workloads import classification

        tables: list[torch.Tensor] = []
        def open_data() -> str:  # called on the clock; nothing may touch training data before
            places, side, sha256 = self.points()
            tables[:] = torch.from_numpy(places).to(device), torch.from_numpy(side).to(device)
            return sha256

        def batch(rows: np.ndarray) -> Batch:
            return tables[0][rows], tables[1][rows]

        return TrainingParts(
            model=classification.initialised(lambda: nn.Sequential(nn.Linear(2, self.width), nn.ReLU(), nn.Linear(
                self.width, self.width), nn.ReLU(), nn.Linear(self.width, 2)), streams),
            loss=classification.loss, scores={"top1": classification.top1}, open_data=open_data,
            train_batch=lambda epoch, rows: batch(rows), eval_batch=lambda rows: batch(TRAIN + rows),
            synthetic_batch=lambda n: (torch.zeros(n, 2, device=device), torch.arange(n, device=device) % 2))
