"""What a language model and its tokens are: the architecture, the streams, the metric; no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

METRIC = "val_loss"


@dataclass(frozen=True, slots=True)
class Shape:
    """Everything that determines the architecture."""

    vocabulary: int
    """Rows of the embedding, padding included."""
    context: int
    """Longest sequence, in tokens."""
    layers: int
    heads: int
    width: int
    """Channels of the residual stream; `heads` divides it."""
    dropout: float = 0.0
    """Of embeddings, attention weights and the two outputs of each block."""
    tied: bool = True
    """True: the output layer uses the weights of the token embedding."""


class TokenStreams(NamedTuple):
    """The tokens of a trial, checked; each stream is in arrays of unsigned integers, one after the other."""

    train: Sequence[np.ndarray]
    evaluation: Sequence[np.ndarray]
    sha256: str
    eval_tokens: int | None = None
    """Length of the stream for evaluation if less than all of it counts."""
