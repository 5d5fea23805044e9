"""Batches of handwritten digits, looked up in tables on the trial's device."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from repro.core.random_streams import Streams
from repro.seams.training import Batch
from repro.workloads import digits_data

SHIFTS = tuple((down, right) for down in (-1, 0, 1) for right in (-1, 0, 1))
"""Augmentation moves an image by at most one pixel and fills the edge with paper."""


class DigitBatches:
    """Batches by look-up: all nine shifts of all training images are computed once.

    The shifts of an epoch are drawn for all samples at once from the stream `augmentation`, so they do not depend on
    the rank, the order or the size of the batches.
    """

    def __init__(
        self, load: Callable[[], digits_data.DigitsData], samples: int, streams: Streams, device: str, *, augment: bool
    ) -> None:
        self._load, self._samples = load, samples
        self._streams, self._device, self._augment = streams, device, augment
        self._epoch = -1
        self._shifts = np.zeros(self._samples, dtype=np.int64)
        self._fed: list[tuple[NDArray[np.int64], NDArray[np.int64] | None]] = []

    def open(self) -> str:
        """Read the data onto the device and return their sha256. Must be called first.

        Raises:
            TrialError: the content has another hash than expected.
        """
        digits = self._load()
        self._selection = digits.selection
        train = scaled(digits.train.images)
        shifts = SHIFTS if self._augment else ((0, 0),)
        self._train = torch.from_numpy(np.concatenate([_shifted(train, *each) for each in shifts])).to(self._device)
        self._train_targets = _targets(digits.train, self._device)
        self._eval = torch.from_numpy(scaled(digits.evaluation.images)).to(self._device)
        self._eval_targets = _targets(digits.evaluation, self._device)
        return digits.sha256

    def selection(self) -> str:
        """Return the sha256 of the numbers of those training images that stay, once open; "": all."""
        return self._selection

    def train(self, epoch: int, indices: NDArray[np.int64]) -> Batch:
        """Return images [n, 1, 8, 8], shifted as in this epoch, and targets [n]."""
        rows = self._index(indices)
        if not self._augment:
            self._fed.append((indices, None))
            return self._train.index_select(0, rows), self._train_targets.index_select(0, rows)
        if epoch != self._epoch:
            self._shifts, self._epoch = self._drawn(epoch), epoch
        shifts = self._shifts[indices]
        self._fed.append((indices, shifts))
        shifted = self._index(shifts * self._samples + indices)
        return self._train.index_select(0, shifted), self._train_targets.index_select(0, rows)

    def _drawn(self, epoch: int) -> NDArray[np.int64]:
        return self._streams.generator("augmentation", epoch).integers(len(SHIFTS), size=self._samples)

    def draws(self, epoch: int, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the index in `SHIFTS` that the seed draws for each sample."""
        return self._drawn(epoch)[indices]

    def fed(self) -> list[tuple[NDArray[np.int64], NDArray[np.int64] | None]]:
        """Return the samples and shifts that `train` has looked up since the last call."""
        fed, self._fed = self._fed, []
        return fed

    def evaluation(self, indices: NDArray[np.int64]) -> Batch:
        """Return unchanged images [n, 1, 8, 8] and targets [n]."""
        rows = self._index(indices)
        return self._eval.index_select(0, rows), self._eval_targets.index_select(0, rows)

    def synthetic(self, samples: int) -> Batch:
        """Return noise of the same shape on the same device, identical in every call."""
        generator = np.random.default_rng(0)
        images = generator.uniform(-1, 1, (samples, 1, digits_data.SIDE, digits_data.SIDE)).astype(np.float32)
        targets = generator.integers(digits_data.CLASSES, size=samples)
        return torch.from_numpy(images).to(self._device), torch.from_numpy(targets).to(self._device)

    def _index(self, rows: NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(rows, dtype=np.int64)).to(self._device)


def scaled(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return pixels from -1 (paper) to 1 (ink), [n, 1, 8, 8]."""
    return (images.astype(np.float32) / (digits_data.GREYS / 2) - 1)[:, None]


def _shifted(images: NDArray[np.float32], down: int, right: int) -> NDArray[np.float32]:
    side = digits_data.SIDE
    padded = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-1)
    return padded[:, :, 1 - down : 1 - down + side, 1 - right : 1 - right + side]


def _targets(split: digits_data.Split, device: str) -> torch.Tensor:
    return torch.from_numpy(split.targets.astype(np.int64)).to(device)
