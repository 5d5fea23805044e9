"""The twin of `gpt` that needs no files: the same model on drawn tokens; for throughput and experiments."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, model_validator

from repro.core.random_streams import Streams
from repro.seams.plugin import Setting
from repro.seams.training import DataIdentity, TrainingParts
from repro.suite.field_problem import FieldProblem
from repro.workloads.tokens import synthetic_tokens
from repro.workloads.tokens.language_model import GptModel
from repro.workloads.tokens.synthetic_tokens import Recipe

if TYPE_CHECKING:
    from repro.workloads.tokens.windows import Opened


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
        least = synthetic_tokens.floor(self._recipe())
        return f"gpt-synthetic: the tokens are drawn with an entropy of {least:.3f} nats; no model's val_loss is lower"

    def identity(self) -> DataIdentity:
        return DataIdentity(
            name="made-up-tokens",
            version="1",
            sha256=synthetic_tokens.draw(self._recipe()).sha256,
            train_samples=self.train_samples,
            eval_samples=self.eval_samples,
            licence="none: no data",
            source="drawn from the options of the workload",
        )

    def build(self, streams: Streams, device: str) -> TrainingParts:
        from repro.workloads.tokens.parts import training_parts
        from repro.workloads.tokens.windows import WindowReader

        reader = WindowReader(partial(_opened, self._recipe(), self.context))
        return training_parts(reader, self.shape(self.vocabulary), self.vocabulary, streams, device)

    def _recipe(self) -> Recipe:
        return Recipe(self.vocabulary, self.train_tokens, self.eval_tokens + 1, self.data_seed)


def _opened(recipe: Recipe, context: int) -> Opened:
    """Return the windows of the drawn tokens."""
    from repro.workloads.tokens.windows import Opened, Windows

    drawn = synthetic_tokens.draw(recipe)
    return Opened(Windows([drawn.train], context), Windows([drawn.evaluation], context), drawn.sha256)
