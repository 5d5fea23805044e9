"""Synthetic images of any size with a network of any size: for throughput and for experiments, never a result."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from repro.core.random_streams import Streams
from repro.seams.training import Batch, DataIdentity, TrainingParts, Workload
from repro.workloads.reading import Batches, Classifier

NOISES = 256
"""Noise images that all samples share, so that a data set of any size stays small in memory."""
COARSE = 4
"""Blocks per side of a class image, so that pooling does not average it away."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that determines the data."""

    side: int
    channels: int
    classes: int
    train_samples: int
    eval_samples: int
    seed: int


@dataclass(frozen=True, slots=True)
class Images:
    """Sample i is pictures[targets[i]] + noises[noise[i]]; training samples first, then those for evaluation."""

    pictures: NDArray[np.float32]
    """[classes, channels, side, side]."""
    noises: NDArray[np.float32]
    """[256, channels, side, side]."""
    targets: NDArray[np.int64]
    noise: NDArray[np.int64]


def draw(recipe: Recipe) -> Images:
    """Draw the data set of `recipe`, each array from a separate stream."""
    streams = Streams(recipe.seed, 0)
    shape = (recipe.channels, recipe.side, recipe.side)
    coarse = streams.generator("pictures").standard_normal((recipe.classes, recipe.channels, COARSE, COARSE))
    block = np.arange(recipe.side) * COARSE // recipe.side
    count = recipe.train_samples + recipe.eval_samples
    return Images(
        pictures=np.ascontiguousarray(coarse[:, :, block][:, :, :, block], dtype=np.float32),
        noises=streams.generator("noises").standard_normal((NOISES, *shape), dtype=np.float32),
        targets=streams.generator("targets").integers(recipe.classes, size=count),
        noise=streams.generator("noise").integers(NOISES, size=count),
    )


def as_bytes(images: Images) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return every sample as pixels [n, side, side, channels], 0 to 255, and all targets [n]."""
    scale = np.float32(32)
    pictures, noises = (np.moveaxis(part, 1, -1) * scale for part in (images.pictures, images.noises))
    found = np.empty((len(images.targets), *pictures.shape[1:]), np.uint8)
    for start in range(0, len(found), NOISES):
        part = slice(start, start + NOISES)
        total = pictures[images.targets[part]] + noises[images.noise[part]] + np.float32(128)
        found[part] = np.clip(np.rint(total), 0, 255)
    return found, images.targets


def digest(images: Images) -> str:
    """Return the sha256 over every array as little-endian bytes."""
    hashed = hashlib.sha256()
    for array, kind in (
        (images.pictures, "<f4"), (images.noises, "<f4"), (images.targets, "<i8"), (images.noise, "<i8")
    ):
        hashed.update(f"{array.shape}".encode())
        hashed.update(np.ascontiguousarray(array, dtype=kind).tobytes())
    return hashed.hexdigest()


def drawn_identity(name: str, workload: Workload, sha256: str) -> DataIdentity:
    """Return the identity of data that a workload draws."""
    return DataIdentity(name=name, version="1", sha256=sha256, train_samples=workload.train_samples,
                        eval_samples=workload.eval_samples, licence="none: no data",
                        source="drawn from the options of the workload")


class SyntheticBatches(Batches):
    """Two look-ups and a sum per batch."""

    def __init__(self, recipe: Recipe, streams: Streams, device: str) -> None:
        super().__init__(recipe.train_samples, streams, device)
        self._recipe = recipe
        self.shape, self.classes = (recipe.channels, recipe.side, recipe.side), recipe.classes

    def open(self) -> str:
        images = draw(self._recipe)
        self._pictures, self._noises = self.put(images.pictures), self.put(images.noises)
        self._targets, self._noise = images.targets, images.noise
        return digest(images)

    def looked_up(self, epoch: int, indices: np.ndarray, draws: np.ndarray | None) -> Batch:
        return self._batch(indices)

    def evaluation(self, indices: np.ndarray) -> Batch:
        return self._batch(np.asarray(indices) + self.samples)

    def _batch(self, samples: np.ndarray) -> Batch:
        targets, noise = self.send(self._targets[samples]), self.send(self._noise[samples])
        return self._pictures[targets] + self._noises[noise], targets


class Synthetic(Classifier):
    """Each class is a random image, each sample that image plus noise; the options alone determine the data."""

    title: ClassVar[str] = "synthetic images, CNN of chosen size"
    synthetic: ClassVar[bool] = True
    reference_samples_per_second: ClassVar[float] = 500.0

    image_size: int = Field(default=32, ge=4, le=512)
    """Pixels a side; halved at each stage but the last."""
    channels: int = Field(default=3, ge=1, le=16)
    classes: int = Field(default=10, ge=2, le=256)
    samples: int = Field(default=4096, ge=1, le=10_000_000)
    """Training samples."""
    held_out: int = Field(default=512, ge=1, le=1_000_000)
    """Evaluation samples."""
    width: int = Field(default=32, ge=8, le=1024, multiple_of=8)
    """Channels of the first convolution; each stage doubles them."""
    depth: int = Field(default=3, ge=1, le=8)
    """Convolutions."""
    data_seed: int = Field(default=0, ge=0)
    """Determines the data set, which, like a real one, does not change with the trial's seed."""

    @property
    def train_samples(self) -> int:
        return self.samples

    @property
    def eval_samples(self) -> int:
        return self.held_out

    @property
    def tensor_count(self) -> int:
        return 3 * self.depth + 2

    def identity(self) -> DataIdentity:
        return drawn_identity("made-up-images", self, digest(draw(self._recipe())))

    def build(self, streams: Streams, device: str) -> TrainingParts:
        from repro.workloads.nets import conv_net

        widths = [self.width * 2**stage for stage in range(self.depth)]
        batches = SyntheticBatches(self._recipe(), streams, device)
        return batches.parts(lambda: conv_net(self.channels, widths, self.classes, "group"))

    def _recipe(self) -> Recipe:
        return Recipe(self.image_size, self.channels, self.classes, self.samples, self.held_out, self.data_seed)
