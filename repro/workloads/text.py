"""A novel that is shipped with the package, read byte by byte by a small GPT: a language model that needs nothing."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, model_validator

from repro.core.random_streams import Streams
from repro.seams.training import DataIdentity, LayerShape, TokenKind, TrainingParts
from repro.workloads import prose_data
from repro.workloads.tokens.language_model import LanguageModel, block_shapes, check_heads, tensors_of

if TYPE_CHECKING:
    from repro.workloads.tokens.windows import Opened


class Text(LanguageModel):
    """Jane Austen's Persuasion, 467 kB; the last tenth of the book is for evaluation. A token is a byte."""

    title: ClassVar[str] = "English prose by bytes, small GPT"
    token: ClassVar[TokenKind] = "byte"
    reference_samples_per_second: ClassVar[float] = 900.0
    sha256: ClassVar[str] = prose_data.SHA256

    context: int = Field(default=64, ge=8, le=1024, description="bytes of a window, which is one sample")
    layers: int = Field(default=2, ge=1, le=48)
    heads: int = Field(default=4, ge=1, le=64)
    width: int = Field(default=64, ge=8, le=4096, description="channels of the residual stream; heads must divide it")
    dropout: float = Field(default=0.0, ge=0, lt=1)

    @model_validator(mode="after")
    def _divides(self) -> Text:
        check_heads(self.width, self.heads)
        return self

    @property
    def train_samples(self) -> int:
        return (prose_data.BYTES - prose_data.EVAL_BYTES - 1) // self.context

    @property
    def eval_samples(self) -> int:
        return (prose_data.EVAL_BYTES - 1) // self.context

    @property
    def layer_shapes(self) -> tuple[LayerShape, ...]:
        return block_shapes(self.layers, self.width, self.context)

    @property
    def tensor_count(self) -> int:
        return tensors_of(self.layers)

    def identity(self) -> DataIdentity:
        return prose_data.identity(self.train_samples, self.eval_samples, self.sha256)

    def build(self, streams: Streams, device: str) -> TrainingParts:
        from repro.workloads.tokens.model import Shape
        from repro.workloads.tokens.parts import training_parts
        from repro.workloads.tokens.windows import WindowReader

        shape = Shape(prose_data.VOCABULARY, self.context, self.layers, self.heads, self.width, self.dropout)
        reader = WindowReader(partial(_opened, self.sha256, self.context))
        return training_parts(reader, shape, prose_data.VOCABULARY, streams, device)


def _opened(sha256: str, context: int) -> Opened:
    """Return the windows of the book, whose content is checked."""
    from repro.workloads.tokens.windows import Opened, Windows

    text = prose_data.verified(sha256)
    train, evaluation = (Windows([part(text)], context) for part in (prose_data.train_part, prose_data.eval_part))
    return Opened(train, evaluation, sha256)
