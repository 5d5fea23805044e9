"""Labelled images that are drawn, not read: any sample is looked up in a few arrays; no torch."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from repro.core.random_streams import Streams

NOISES = 256
"""Noise images that all samples share, so that a data set of any size stays small in memory."""
NOISE_LEVEL = 1.0
"""Standard deviation of the noise, equal to that of the class images."""
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
    noises = streams.generator("noises").standard_normal((NOISES, *shape), dtype=np.float32)
    count = recipe.train_samples + recipe.eval_samples
    return Images(
        pictures=np.ascontiguousarray(coarse[:, :, block][:, :, :, block], dtype=np.float32),
        noises=noises * np.float32(NOISE_LEVEL),
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


def sha256(recipe: Recipe) -> str:
    """Return the sha256 over every array as little-endian bytes."""
    return digest(draw(recipe))


def digest(images: Images) -> str:
    """Return the sha256 over every array as little-endian bytes."""
    hashed = hashlib.sha256()
    for array, kind in (
        (images.pictures, "<f4"), (images.noises, "<f4"), (images.targets, "<i8"), (images.noise, "<i8")
    ):
        hashed.update(f"{array.shape}".encode())
        hashed.update(np.ascontiguousarray(array, dtype=kind).tobytes())
    return hashed.hexdigest()
