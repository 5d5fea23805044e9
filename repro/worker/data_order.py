"""The samples of every global batch: an endless chain of shuffled passes, identical for every world size."""

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

    def global_batch(self, step: int) -> tuple[int, np.ndarray]:
        """Return (epoch of the first sample, indices [global_batch] int64) of optimizer step `step`, from 0."""
        start = step * self._batch
        first, last = start // self._count, (start + self._batch - 1) // self._count
        spans = [(epoch, epoch * self._count) for epoch in range(first, last + 1)]
        # Copied: a caller may write into its indices, and the pass is kept for the steps to come.
        return first, np.concatenate([
            self.permutation(epoch)[max(0, start - begin):start + self._batch - begin] for epoch, begin in spans])

    def micro_batches(self, step: int, rank: int, world: int, accumulation: int) -> tuple[int, list[np.ndarray]]:
        """Return (epoch, this rank's micro-batches) of a step.

        The global batch is cut into accumulation x world equal runs; micro-batch m of rank r is run m x world + r.
        """
        epoch, indices = self.global_batch(step)
        runs = indices.reshape(accumulation, world, -1)
        return epoch, [runs[micro, rank] for micro in range(accumulation)]

    def sha256(self, passes: int = 2) -> str:
        """Hash the first passes as little-endian int64, to compare two trials."""
        digest = hashlib.sha256()
        for epoch in range(passes):
            digest.update(self.permutation(epoch).astype("<i8").tobytes())
        return digest.hexdigest()

    def permutation(self, epoch: int) -> np.ndarray:
        """Return the sample indices [train_samples] int64 of one pass over the data."""
        if epoch not in self._passes:
            self._passes = {old: order for old, order in self._passes.items() if old >= epoch - 1}
            self._passes[epoch] = self._streams.generator("order", epoch).permutation(self._count)
        return self._passes[epoch]
