"""Tokens that are drawn, not read: frequencies as in text, and a structure that a model can learn; no torch."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from repro.core.random_streams import Streams

SHIFT = 2.7
"""Of the Zipf-Mandelbrot law: token k has a weight of 1 / (k + 2.7), near what words of English have."""
FOLLOWS = 0.75
"""Probability that a token is the fixed successor of the one before it; otherwise it is drawn independently."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that determines the tokens."""

    vocabulary: int
    train_tokens: int
    eval_tokens: int
    seed: int


@dataclass(frozen=True, slots=True)
class Tokens:
    """Both streams, read-only, and the sha256 over them."""

    train: NDArray[np.uint16]
    evaluation: NDArray[np.uint16]
    sha256: str


@lru_cache(maxsize=1)
def draw(recipe: Recipe) -> Tokens:
    """Draw both streams; they share the law and the successors, each has its own draws."""
    streams = Streams(recipe.seed, 0)
    successor = streams.generator("successors").permutation(recipe.vocabulary).astype(np.uint16)
    weights = 1 / (np.arange(recipe.vocabulary) + SHIFT)
    bounds = np.cumsum(weights / weights.sum())
    train, evaluation = (
        _stream(streams.generator(name), count, successor, bounds)
        for name, count in (("train-tokens", recipe.train_tokens), ("eval-tokens", recipe.eval_tokens))
    )
    hashed = hashlib.sha256()
    for array in (train, evaluation):
        hashed.update(f"{array.shape}".encode())
        hashed.update(array.astype("<u2", copy=False).tobytes())
    return Tokens(train, evaluation, hashed.hexdigest())


def floor(recipe: Recipe) -> float:
    """Return the least mean loss of a token that any model can reach, in nats: the entropy rate of the source.

    The next token is the successor s of the one before with 0.75 + 0.25 w(s), any other k with 0.25 w(k). In the long
    run a token is as frequent as the law w and its images under the successors, each weighted by how often it occurs.
    """
    weights = 1 / (np.arange(recipe.vocabulary) + SHIFT)
    weights /= weights.sum()
    successor = Streams(recipe.seed, 0).generator("successors").permutation(recipe.vocabulary)
    frequency, image = np.zeros_like(weights), weights.copy()
    for power in range(200):
        frequency += (1 - FOLLOWS) * FOLLOWS**power * image
        moved = np.empty_like(image)
        moved[successor] = image
        image = moved
    other = (1 - FOLLOWS) * weights
    certain = FOLLOWS + other[successor]
    base = -(other * np.log(other)).sum()
    entropies = base + other[successor] * np.log(other[successor]) - certain * np.log(certain)
    return float((frequency * entropies).sum())


def _stream(
    generator: np.random.Generator, count: int, successor: NDArray[np.uint16], bounds: NDArray[np.float64]
) -> NDArray[np.uint16]:
    fresh = generator.random(count) >= FOLLOWS
    fresh[0] = True
    drawn = np.searchsorted(bounds, generator.random(count), side="right")
    tokens = np.minimum(drawn, len(bounds) - 1).astype(np.uint16)
    # All tokens at the same distance from the last drawn one are computed at once, nearest first.
    rows = np.flatnonzero(fresh)
    while len(rows := rows[rows + 1 < count] + 1):
        rows = rows[~fresh[rows]]
        tokens[rows] = successor[tokens[rows - 1]]
    tokens.setflags(write=False)
    return tokens
