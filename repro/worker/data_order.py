"""Which samples make up which global batch: an endless chain of shuffled passes, the same for every world size."""

from __future__ import annotations

import hashlib

import numpy as np

from repro.core.random_streams import Streams


class SampleOrder:
    """The data order of one trial.

    Pass e over the data is the permutation drawn from stream `order`, key e. Passes are chained without a gap, so every
    global batch is full and every sample is seen exactly once a pass. Nothing here depends on rank, world size or
    engine.
    """

    def __init__(self, streams: Streams, train_samples: int, global_batch: int) -> None:
        self._streams, self._count, self._batch = streams, train_samples, global_batch
        self._passes: dict[int, np.ndarray] = {}

    def batch(self, step: int) -> tuple[int, np.ndarray]:
        """(epoch of the first sample, indices [global_batch] int64) of optimizer step `step`, from 0."""
        start = step * self._batch
        first, last = start // self._count, (start + self._batch - 1) // self._count
        chain = np.concatenate([self.whole(epoch) for epoch in range(first, last + 1)])
        offset = start - first * self._count
        return first, chain[offset:offset + self._batch]

    def shares(self, step: int, rank: int, world: int, accumulation: int) -> tuple[int, list[np.ndarray]]:
        """(epoch, this rank's micro-batches) of a step: the global batch cut into accumulation x world equal runs."""
        epoch, indices = self.batch(step)
        runs = indices.reshape(accumulation, world, -1)
        return epoch, [runs[micro, rank] for micro in range(accumulation)]

    def sha256(self, passes: int = 2) -> str:
        """Hash of the first passes as little-endian int64, for comparing two trials."""
        digest = hashlib.sha256()
        for epoch in range(passes):
            digest.update(self.whole(epoch).astype("<i8").tobytes())
        return digest.hexdigest()

    def whole(self, epoch: int) -> np.ndarray:
        """Sample indices [train_samples] int64 of one pass over the data."""
        if epoch not in self._passes:
            self._passes = {old: order for old, order in self._passes.items() if old >= epoch - 1}
            self._passes[epoch] = self._streams.generator("order", epoch).permutation(self._count)
        return self._passes[epoch]
