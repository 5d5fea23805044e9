"""Batches of synthetic images, computed on the trial's device."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from repro.seams.training import Batch
from repro.workloads import synthetic_images
from repro.workloads.images.image_reader import Stages, side_in
from repro.workloads.synthetic_images import COARSE, Recipe


class SyntheticBatches:
    """Two look-ups and a sum per batch; the same bytes for the same sample on every rank."""

    def __init__(self, recipe: synthetic_images.Recipe, device: str) -> None:
        self._recipe, self._device = recipe, device
        self._fed: list[NDArray[np.int64]] = []

    def open(self) -> str:
        """Draw the data, put them on the device and return their sha256."""
        images = synthetic_images.draw(self._recipe)
        self._pictures = torch.from_numpy(images.pictures).to(self._device)
        self._noises = torch.from_numpy(images.noises).to(self._device)
        self._targets, self._noise = images.targets, images.noise
        return synthetic_images.digest(images)

    def train(self, epoch: int, indices: NDArray[np.int64]) -> Batch:
        """Return images [n, channels, side, side] and targets [n], the same in every epoch."""
        self._fed.append(indices)
        return self._batch(indices)

    def fed(self) -> list[tuple[NDArray[np.int64], NDArray[np.int64] | None]]:
        """Return the samples that `train` has looked up since the last call."""
        fed, self._fed = self._fed, []
        return [(indices, None) for indices in fed]

    def evaluation(self, indices: NDArray[np.int64]) -> Batch:
        """Return images [n, channels, side, side] and targets [n]."""
        return self._batch(np.asarray(indices) + self._recipe.train_samples)

    def synthetic(self, samples: int) -> Batch:
        """Return noise of the same shape on the same device, identical in every call."""
        recipe, generator = self._recipe, np.random.default_rng(0)
        images = generator.standard_normal((samples, recipe.channels, recipe.side, recipe.side), dtype=np.float32)
        targets = generator.integers(recipe.classes, size=samples)
        return torch.from_numpy(images).to(self._device), torch.from_numpy(targets).to(self._device)

    def _batch(self, samples: NDArray[np.int64]) -> Batch:
        targets = torch.from_numpy(self._targets[samples]).to(self._device)
        noise = torch.from_numpy(self._noise[samples]).to(self._device)
        return self._pictures.index_select(0, targets) + self._noises.index_select(0, noise), targets


class CoarseBatches(SyntheticBatches):
    """Images of 4 x 4 blocks, so that a thousand classes and a million samples fit in memory."""

    def __init__(self, classes: int, samples: int, held_out: int, stages: Stages, eval_side: int, device: str) -> None:
        super().__init__(recipe(classes, samples, held_out), device)
        self._stages, self._eval_side = stages, eval_side

    def train(self, epoch: int, indices: np.ndarray) -> Batch:
        """Return images [n, 3, side, side] of this epoch's size, and targets [n]."""
        return _enlarged(super().train(epoch, indices), side_in(self._stages, epoch))

    def evaluation(self, indices: np.ndarray) -> Batch:
        """Return images [n, 3, side, side] and targets [n]."""
        return _enlarged(super().evaluation(indices), self._eval_side)

    def synthetic(self, samples: int) -> Batch:
        """Return noise of the shape of the first epoch, identical in every call."""
        return _enlarged(super().synthetic(samples), side_in(self._stages, 0))


def recipe(classes: int, samples: int, held_out: int) -> Recipe:
    """Return everything that determines the data."""
    return Recipe(COARSE, 3, classes, samples, held_out, seed=0)


def _enlarged(batch: Batch, side: int) -> tuple[torch.Tensor, torch.Tensor]:
    images, targets = batch
    return functional.interpolate(images, size=(side, side), mode="nearest"), targets
