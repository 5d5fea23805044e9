"""Options common to language models, and the sizes of GPT-2; no torch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from repro.core.random_streams import Streams
from repro.seams.training import Direction, LayerShape, TokenKind, TrainingParts, Workload
from repro.suite.field_problem import FieldProblem
from repro.workloads.tokens.shape import METRIC, Shape, TokenStreams

Size = Literal["small", "124M", "350M"]
SIZES: dict[Size, tuple[int, int, int]] = {"small": (4, 4, 128), "124M": (12, 12, 768), "350M": (24, 16, 1024)}
"""Layers, heads and width of GPT-2 (Radford et al., 2019), and of one for CPUs."""
LOGITS = 1 << 28
"""Outputs of one forward pass of an evaluation at most, unless it is one sample: 1 GiB in float32."""


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
    @abstractmethod
    def vocabulary_here(self) -> int:
        """Different tokens of the data."""

    @property
    @abstractmethod
    def shape(self) -> Shape:
        """The architecture."""

    @abstractmethod
    def opener(self) -> Callable[[], TokenStreams]:
        """Return what opens the tokens of a trial; it can be pickled."""

    @model_validator(mode="after")
    def _divides(self) -> LanguageModel:
        if self.shape.width % self.shape.heads:
            raise FieldProblem(f"width {self.shape.width} is not divisible by heads {self.shape.heads}", ("width",))
        return self

    @property
    def layer_shapes(self) -> tuple[LayerShape, ...]:
        shape, width = self.shape, self.shape.width
        sizes = ((width + 1, 3 * width), (width + 1, width), (width + 1, 4 * width), (4 * width + 1, width))
        block = tuple(LayerShape(inputs, outputs, self.context, bias=True) for inputs, outputs in sizes)
        return (*block * shape.layers, *(() if shape.tied else (LayerShape(width, shape.vocabulary, self.context),)))

    @property
    def tensor_count(self) -> int:
        return 12 * self.shape.layers + 4 + (not self.shape.tied)

    def build(self, streams: Streams, device: str) -> TrainingParts:
        from repro.workloads.tokens.model import training_parts

        return training_parts(self.opener(), self.shape, self.vocabulary_here, streams, device)

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

    @property
    def reference_samples_per_second(self) -> float:  # type: ignore[override]
        layers, _, width = self.dimensions
        # 6 operations a weight and token; a core does about 3e10 a second.
        return 3e10 / (6 * (12 * layers * width**2 + self.vocabulary_here * width) * self.context)

    @property
    def eval_batch_size(self) -> int:  # type: ignore[override]
        return max(1, min(512, LOGITS // (self.context * self.vocabulary_here)))

    @property
    def dimensions(self) -> tuple[int, int, int]:
        """Layers, heads and width, those that are stated before those of the size."""
        layers, heads, width = SIZES[self.size]
        return self.layers or layers, self.heads or heads, self.width or width

    @property
    def shape(self) -> Shape:
        rows = -(-self.vocabulary_here // self.pad_vocabulary) * self.pad_vocabulary
        return Shape(rows, self.context, *self.dimensions, self.dropout, self.tied)
