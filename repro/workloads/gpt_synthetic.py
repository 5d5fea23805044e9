"""The twin of `gpt` that needs no files: the same model on drawn tokens; for throughput and experiments."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from repro.core.random_streams import Streams
from repro.seams.plugin import Setting
from repro.seams.training import DataIdentity
from repro.suite.field_problem import FieldProblem
from repro.workloads.synthetic import drawn_identity
from repro.workloads.tokens.language_model import GptModel
from repro.workloads.tokens.shape import TokenStreams

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


@lru_cache(maxsize=1)
def draw(recipe: Recipe) -> TokenStreams:
    """Draw both streams, read-only; they share the law and the successors, each has its own draws."""
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
    return TokenStreams([train], [evaluation], hashed.hexdigest())


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


class GptSynthetic(GptModel):
    """Tokens as frequent as words (Zipf), three quarters of them determined by the token before."""

    title: ClassVar[str] = "synthetic tokens, GPT-2"
    synthetic: ClassVar[bool] = True

    vocabulary: int = Field(50257, ge=8, le=65536, description="different tokens")
    train_tokens: int = Field(10_000_000, ge=16, le=1_000_000_000)
    eval_tokens: int = Field(
        1_048_576, ge=16, le=100_000_000,
        description="tokens that an evaluation predicts, rounded down to whole windows")
    data_seed: int = Field(
        0, ge=0, description="determines the tokens, which like real ones are the same in all trials")

    @model_validator(mode="after")
    def _long_enough(self) -> GptSynthetic:
        if min(self.train_tokens - 1, self.eval_tokens) < self.context:
            raise FieldProblem(f"a window of {self.context:,} tokens is longer than the data: {self.train_tokens:,} "
                               f"for training, {self.eval_tokens:,} to predict", ("context",))
        return self

    @property
    def vocabulary_here(self) -> int:
        return self.vocabulary

    @property
    def train_samples(self) -> int:
        return (self.train_tokens - 1) // self.context

    @property
    def eval_samples(self) -> int:
        return self.eval_tokens // self.context

    def note(self, setting: Setting) -> str:
        least = floor(self._recipe())
        return f"gpt-synthetic: the tokens are drawn with an entropy of {least:.3f} nats; no model's val_loss is lower"

    def identity(self) -> DataIdentity:
        return drawn_identity("made-up-tokens", self, draw(self._recipe()).sha256)

    def opener(self) -> Callable[[], TokenStreams]:
        return partial(draw, self._recipe())

    def _recipe(self) -> Recipe:
        return Recipe(self.vocabulary, self.train_tokens, self.eval_tokens + 1, self.data_seed)
