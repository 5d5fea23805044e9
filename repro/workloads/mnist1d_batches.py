"""Batches of MNIST-1D, looked up in tables on the trial's device."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from repro.seams.training import Batch, Fed
from repro.workloads import mnist1d_data


class SignalBatches:
    """Signals [n, 1, 40] and targets [n], the same in every epoch."""

    def __init__(self, expected_sha256: str, device: str) -> None:
        self._expected, self._device = expected_sha256, device
        self._fed: list[Fed] = []

    def open(self) -> str:
        """Make the data, put them on the device and return their sha256. Must be called first.

        Raises:
            TrialError: the content has another hash than expected.
        """
        signals = mnist1d_data.verified(self._expected)
        self._train = self._tables(signals.train, signals.train_targets)
        self._eval = self._tables(signals.evaluation, signals.eval_targets)
        return signals.sha256

    def train(self, epoch: int, indices: NDArray[np.int64]) -> Batch:
        """Return training signals [n, 1, 40] and targets [n]."""
        self._fed.append((indices, None))
        return self._rows(self._train, indices)

    def evaluation(self, indices: NDArray[np.int64]) -> Batch:
        """Return evaluation signals [n, 1, 40] and targets [n]."""
        return self._rows(self._eval, indices)

    def fed(self) -> list[Fed]:
        """Return the samples that `train` has looked up since the last call."""
        fed, self._fed = self._fed, []
        return fed

    def synthetic(self, samples: int) -> Batch:
        """Return noise of the same shape on the same device, identical in every call."""
        generator = np.random.default_rng(0)
        signals = generator.standard_normal((samples, mnist1d_data.LENGTH), dtype=np.float32)
        return self._tables(signals, generator.integers(mnist1d_data.CLASSES, size=samples))

    def _tables(self, signals: NDArray[np.float32], targets: NDArray[np.int64]) -> Batch:
        return (torch.from_numpy(signals[:, None].copy()).to(self._device),
                torch.from_numpy(targets.copy()).to(self._device))

    def _rows(self, tables: Batch, indices: NDArray[np.int64]) -> Batch:
        rows = torch.from_numpy(np.ascontiguousarray(indices, dtype=np.int64)).to(self._device)
        signals, targets = tables
        return signals.index_select(0, rows), targets.index_select(0, rows)
