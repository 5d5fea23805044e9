"""Batches of CIFAR-10's images, which fit in the device's memory: looked up and augmented there, vectorised."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from repro.core.random_streams import Streams
from repro.seams.training import Batch, Fed
from repro.workloads.images.cifar10_form import CLASSES, SIDE

PAD = 4
"""Pixels by which a crop moves an image at most; the edge is mirrored."""
SHIFTS = 2 * PAD + 1
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)
"""Mean and standard deviation of CIFAR-10's training pixels, by channel, in [0, 1]."""


class SmallImages(NamedTuple):
    """A data set in memory."""

    images: np.ndarray
    """[n, 32, 32, 3] uint8."""
    targets: np.ndarray
    """[n] int64."""
    eval_images: np.ndarray
    eval_targets: np.ndarray
    sha256: str
    """Identity of the data."""
    selection: str = ""
    """sha256 of the numbers of those training images that stay; "": all."""


class Augmentation(NamedTuple):
    """Random changes of training images, drawn again in every epoch."""

    flip: bool
    crop: bool
    cutout: int
    """Side of a square of mean colour, its centre anywhere in the image; 0: none (DeVries and Taylor 2017)."""


class SmallImageBatches:
    """Batches of `SmallImages`.

    One number a sample is drawn for an epoch, for all samples at once: it holds flip, shift and the centre of the
    cutout, whichever of them are used.
    """

    # One for each thing that a batch depends on.
    def __init__(
        self, load: Callable[[], SmallImages], samples: int, augmentation: Augmentation, streams: Streams, device: str
    ) -> None:
        self._load, self._samples = load, samples
        self._augmentation, self._streams, self._device = augmentation, streams, device
        self._epoch, self._codes = -1, np.zeros(samples, np.int64)
        self._fed: list[Fed] = []
        self.augments = augmentation.flip or augmentation.crop or augmentation.cutout > 0

    def open(self) -> str:
        """Read the data onto the device and return their sha256. Must be called first."""
        found = self._load()
        self._selection = found.selection
        self._train, self._train_targets = self._put(found.images), self._put(found.targets)
        self._eval, self._eval_targets = self._put(found.eval_images), self._put(found.eval_targets)
        self._mean = torch.tensor(MEAN, device=self._device) * 255
        self._scale = 1 / (torch.tensor(STD, device=self._device) * 255)
        return found.sha256

    def selection(self) -> str:
        """Return the sha256 of the numbers of those training images that stay, once open; "": all."""
        return self._selection

    def train(self, epoch: int, indices: np.ndarray) -> Batch:
        """Return augmented images [n, 3, 32, 32] float32 and targets [n]."""
        if not self.augments:
            self._fed.append((indices, None))
            rows = self._put(indices)
            return self._scaled(self._train[rows]), self._train_targets[rows]
        if epoch != self._epoch:
            self._codes, self._epoch = self._drawn(epoch), epoch
        codes = self._codes[indices]
        self._fed.append((indices, codes))
        rows = self._put(indices)
        return self._augmented(rows, self._put(codes)), self._train_targets[rows]

    def evaluation(self, indices: np.ndarray) -> Batch:
        """Return unchanged images [n, 3, 32, 32] float32 and targets [n]."""
        rows = self._put(indices)
        return self._scaled(self._eval[rows]), self._eval_targets[rows]

    def fed(self) -> list[Fed]:
        """Return the samples and draws that `train` has looked up since the last call."""
        fed, self._fed = self._fed, []
        return fed

    def draws(self, epoch: int, indices: np.ndarray) -> np.ndarray:
        """Return the number that the seed draws for each sample."""
        found: np.ndarray = self._drawn(epoch)[indices]
        return found

    def synthetic(self, samples: int) -> Batch:
        """Return noise of the same shape on the same device, identical in every call."""
        generator = np.random.default_rng(0)
        images = generator.standard_normal((samples, 3, SIDE, SIDE), dtype=np.float32)
        return self._put(images), self._put(generator.integers(CLASSES, size=samples))

    def _drawn(self, epoch: int) -> np.ndarray:
        outcomes = 2 * SHIFTS**2 * SIDE**2
        found: np.ndarray = self._streams.generator("augmentation", epoch).integers(outcomes, size=self._samples)
        return found

    def _augmented(self, rows: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        """Return the images of `rows` [n] as their numbers `codes` [n] say; all on the device."""
        rest, flips = codes.div(2, rounding_mode="floor"), codes.remainder(2)
        shifts, middles = rest.remainder(SHIFTS**2), rest.div(SHIFTS**2, rounding_mode="floor")
        line = torch.arange(SIDE, device=codes.device)
        ys, xs = line.expand(len(codes), SIDE), line.expand(len(codes), SIDE)
        if self._augmentation.flip:
            xs = torch.where(flips[:, None] == 1, SIDE - 1 - xs, xs)
        if self._augmentation.crop:
            down, right = shifts.remainder(SHIFTS), shifts.div(SHIFTS, rounding_mode="floor")
            ys, xs = _mirrored(ys + down[:, None] - PAD), _mirrored(xs + right[:, None] - PAD)
        images = self._scaled(self._train[rows[:, None, None], ys[:, :, None], xs[:, None, :]])
        if self._augmentation.cutout:
            middle_y, middle_x = middles.div(SIDE, rounding_mode="floor"), middles.remainder(SIDE)
            hidden = self._near(middle_y, line)[:, :, None] & self._near(middle_x, line)[:, None, :]
            images.masked_fill_(hidden[:, None], 0.0)  # the mean colour
        return images

    def _near(self, middles: torch.Tensor, line: torch.Tensor) -> torch.Tensor:
        """Return [n, 32] bool: pixels of a line that the square around each middle hides."""
        start = middles[:, None] - self._augmentation.cutout // 2
        return (line >= start) & (line < start + self._augmentation.cutout)

    def _scaled(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return pixels [n, 32, 32, 3] uint8 as [n, 3, 32, 32] float32 of mean 0 and deviation 1."""
        return ((pixels.float() - self._mean) * self._scale).permute(0, 3, 1, 2).contiguous()

    def _put(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)


def _mirrored(places: torch.Tensor) -> torch.Tensor:
    """Return places outside of 0 to 31 mirrored at the edge, which is not repeated."""
    return SIDE - 1 - (SIDE - 1 - places.abs()).abs()
