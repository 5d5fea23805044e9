"""Options common to language models, and the sizes of GPT-2; no torch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field, model_validator

from repro.seams.training import Direction, LayerShape, TokenKind, Workload
from repro.suite.field_problem import FieldProblem

Size = Literal["small", "124M", "350M"]
SIZES: dict[Size, tuple[int, int, int]] = {"small": (4, 4, 128), "124M": (12, 12, 768), "350M": (24, 16, 1024)}
"""Layers, heads and width of GPT-2 (Radford et al., 2019), and of one for CPUs."""
METRIC = "val_loss"
LOGITS = 1 << 28
"""Outputs of one forward pass of an evaluation at most, unless it is one sample: 1 GiB in float32."""


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

    @property
    def parameters(self) -> int:
        """Number of trained numbers: 12 w^2 + 13 w a block, embeddings, the last normalisation, an untied output."""
        width = self.width
        embeddings = (self.vocabulary * (1 if self.tied else 2) + self.context) * width
        return self.layers * (12 * width**2 + 13 * width) + embeddings + 2 * width


class TokenStreams(NamedTuple):
    """The tokens of a trial, checked; each stream is in arrays of unsigned integers, one after the other."""

    train: Sequence[np.ndarray]
    evaluation: Sequence[np.ndarray]
    sha256: str
    eval_tokens: int | None = None
    """Length of the stream for evaluation if less than all of it counts."""


class LanguageModel(Workload):
    """Base of workloads that predict the next token; a sample is a window of `context` tokens."""

    reads_samples: ClassVar[bool] = True
    unit: ClassVar[str] = "windows"
    metrics: ClassVar[Mapping[str, Direction]] = {METRIC: "lower"}
    ranges: ClassVar[Mapping[str, tuple[float, float]]] = {METRIC: (0.0, 100.0)}
    test_views: ClassVar[int | None] = 1
    token: ClassVar[TokenKind] = "token"

    context: int

    @property
    def tokens_per_sample(self) -> int:
        return self.context

    @property
    def token_losses(self) -> Mapping[str, TokenKind]:
        return {METRIC: self.token}


class GptModel(LanguageModel):
    """Base of workloads that train a GPT-2 of a chosen size."""

    size: Size = Field("124M", description="GPT-2 of 124 or 350 million parameters, or a small one for CPUs")
    layers: int | None = Field(None, ge=1, le=200, description="null: as the size has it")
    heads: int | None = Field(None, ge=1, le=256, description="null: as the size has it")
    width: int | None = Field(None, ge=8, le=65536, description="channels of the residual stream; null: as the size "
                                                               "has it")
    context: int = Field(1024, ge=8, le=65536, description="tokens of a window, which is one sample")
    dropout: float = Field(0.0, ge=0, lt=1)
    tied: bool = Field(True, description="the output layer uses the weights of the token embedding")
    pad_vocabulary: int = Field(1, ge=1, le=4096, description="round the rows of the embedding up to a multiple of "
                                                              "this; kernels are faster on multiples of 64 or 128")

    @model_validator(mode="after")
    def _divides(self) -> GptModel:
        _, heads, width = self.dimensions
        check_heads(width, heads)
        return self

    @property
    def reference_samples_per_second(self) -> float:  # type: ignore[override]
        layers, _, width = self.dimensions
        # 6 operations a weight and token; a core does about 3e10 a second.
        return 3e10 / (6 * (12 * layers * width**2 + self.vocabulary_here * width) * self.context)

    @property
    def eval_batch_size(self) -> int:  # type: ignore[override]
        return max(1, min(512, LOGITS // (self.context * self.vocabulary_here)))

    @property
    @abstractmethod
    def vocabulary_here(self) -> int:
        """Different tokens of the data."""

    @property
    def dimensions(self) -> tuple[int, int, int]:
        """Layers, heads and width, those that are stated before those of the size."""
        layers, heads, width = SIZES[self.size]
        return self.layers or layers, self.heads or heads, self.width or width

    @property
    def layer_shapes(self) -> tuple[LayerShape, ...]:
        layers, _, width = self.dimensions
        output = () if self.tied else (LayerShape(width, self._rows(self.vocabulary_here), self.context),)
        return (*block_shapes(layers, width, self.context), *output)

    @property
    def tensor_count(self) -> int:
        return tensors_of(self.dimensions[0]) + (not self.tied)

    def shape(self, vocabulary: int) -> Shape:
        """Return the architecture for so many different tokens."""
        layers, heads, width = self.dimensions
        return Shape(self._rows(vocabulary), self.context, layers, heads, width, self.dropout, self.tied)

    def _rows(self, vocabulary: int) -> int:
        """Return the rows of the embedding, padding included."""
        return -(-vocabulary // self.pad_vocabulary) * self.pad_vocabulary


def block_shapes(layers: int, width: int, context: int) -> tuple[LayerShape, ...]:
    """Return the linear layers of the blocks of a GPT-2: of the attention and of the perceptron."""
    sizes = ((width + 1, 3 * width), (width + 1, width), (width + 1, 4 * width), (4 * width + 1, width))
    return tuple(LayerShape(inputs, outputs, context, bias=True) for inputs, outputs in sizes) * layers


def tensors_of(layers: int) -> int:
    """Return the number of trained tensors of a GPT-2 whose output layer is tied to the embedding."""
    return 12 * layers + 4


def check_heads(width: int, heads: int) -> None:
    """Refuse a width that the heads do not divide.

    Raises:
        FieldProblem: it is none.
    """
    if width % heads:
        raise FieldProblem(f"width {width} is not divisible by heads {heads}", ("width",))
