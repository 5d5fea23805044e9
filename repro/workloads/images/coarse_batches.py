"""Batches of synthetic images of any size and number: each is a few coarse blocks, enlarged on the device."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

from repro.seams.training import Batch
from repro.workloads.images.image_reader import Stages, side_in
from repro.workloads.synthetic_batches import SyntheticBatches
from repro.workloads.synthetic_images import COARSE, Recipe


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
