"""Batches of a `SampleReader`, read in the rank's own process."""

from __future__ import annotations

import numpy as np

from repro.seams.training import Batch, Fed, SampleReader
from repro.seams.workload import to_device


class InProcess:
    """The functions of `TrainingParts` around a reader; what was fed is what the reader says it read."""

    def __init__(self, reader: SampleReader, device: str) -> None:
        self.reader, self.device = reader, device
        self._fed: list[Fed] = []

    def train_batch(self, epoch: int, indices: np.ndarray) -> Batch:
        """Read one training micro-batch and copy it to the device."""
        read = self.reader.train(epoch, indices)
        self._fed.append(read.fed)
        return self.to_device(read.batch)

    def eval_batch(self, indices: np.ndarray) -> Batch:
        """Read one evaluation batch and copy it to the device."""
        return self.to_device(self.reader.evaluation(indices))

    def fed(self) -> list[Fed]:
        """Return what was read for training since the last call."""
        fed, self._fed = self._fed, []
        return fed

    def to_device(self, batch: Batch) -> Batch:
        """Return the batch on the trial's device."""
        inputs, targets = batch
        return to_device(inputs, self.device), to_device(targets, self.device)
