"""Labelled images that are drawn instead of read: a few arrays from which any sample is looked up; no torch."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from repro.core.random_streams import Streams

NOISES = 256
"""Noise pictures that all samples share: a data set of any size stays small in memory."""
NOISE_LEVEL = 1.0
"""Standard deviation of the noise, as large as that of the class pictures."""
COARSE = 4
"""Class pictures are this many blocks a side, so that pooling does not wash them out."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that decides the data."""

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
    """The data set of `recipe`, each array from a stream of its own."""
    streams = Streams(recipe.seed, 0)
    shape = (recipe.channels, recipe.side, recipe.side)
    coarse = streams.generator("pictures").standard_normal((recipe.classes, recipe.channels, COARSE, COARSE))
    block = np.arange(recipe.side) * COARSE // recipe.side
    noises = streams.generator("noises").standard_normal((NOISES, *shape), dtype=np.float32)
    count = recipe.train_samples + recipe.eval_samples
    return Images(
        pictures=np.ascontiguousarray(coarse[:, :, block][:, :, :, block], dtype=np.float32),
        noises=noises * np.float32(NOISE_LEVEL),
        targets=streams.generator("targets").integers(recipe.classes, size=count),
        noise=streams.generator("noise").integers(NOISES, size=count),
    )


def sha256(recipe: Recipe) -> str:
    """Hash of every array as little-endian bytes."""
    return digest(draw(recipe))


def digest(images: Images) -> str:
    """Hash of every array as little-endian bytes."""
    hashed = hashlib.sha256()
    for array, kind in (
        (images.pictures, "<f4"), (images.noises, "<f4"), (images.targets, "<i8"), (images.noise, "<i8")
    ):
        hashed.update(f"{array.shape}".encode())
        hashed.update(np.ascontiguousarray(array, dtype=kind).tobytes())
    return hashed.hexdigest()
