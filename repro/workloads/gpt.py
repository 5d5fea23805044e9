"""GPT-2 on token shards: the nanoGPT speed-run's task, or any text that `repro data prepare gpt` has tokenised."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import ClassVar

from pydantic import Field, model_validator

from repro.core.errors import TrialError, UsageError
from repro.seams.plugin import TextOption
from repro.seams.training import TokenKind
from repro.suite.field_problem import FieldProblem
from repro.workloads.data.manifest import DataForm, Prepared
from repro.workloads.data.workload import PreparedWorkload, Stated
from repro.workloads.tokens.form import TokenForm, mapped, of_split
from repro.workloads.tokens.language_model import GptModel
from repro.workloads.tokens.shape import METRIC, TokenStreams
from repro.workloads.tokens.tokenizers import BYTES, GPT2

EVAL_TOKENS = 10_485_760
"""Of FineWeb for validation, as in the nanoGPT speed-run."""


class TokenData(Stated):
    """Facts of the tokens that define an experiment."""

    train_tokens: int = Field(ge=16)
    eval_tokens: int = Field(ge=16)
    """That there are; `Gpt.eval_tokens` says how many an evaluation predicts."""
    tokenizer: TextOption
    tokenizer_sha256: str = Field(pattern="^[0-9a-f]{64}$")
    vocabulary: int = Field(ge=2, le=65536)


FINEWEB = TokenData(train_tokens=10_300_000_000, eval_tokens=100_000_000, tokenizer=GPT2.name,
                    tokenizer_sha256=GPT2.sha256, vocabulary=GPT2.vocabulary)
"""About what the speed-run's shards hold; the prepared ones are counted."""


class Gpt(GptModel, PreparedWorkload):
    """GPT-2 124M, 350M, a small one, or a size of your own, on prepared tokens.

    Known target: val_loss 3.28 with 124M on FineWeb (the nanoGPT speed-run).
    """

    title: ClassVar[str] = "token form, GPT-2"
    form: ClassVar[DataForm] = TokenForm()

    tokenizer: TextOption | None = Field(
        None, description="refuse data of another tokenizer: gpt2, bytes, bpe; null: any")
    eval_tokens: int = Field(
        EVAL_TOKENS, ge=8, description="tokens that an evaluation predicts, the first of those for validation, rounded "
                                       "down to whole windows")
    data: TokenData = FINEWEB

    @model_validator(mode="after")
    def _fits(self) -> Gpt:
        if self.tokenizer not in (None, self.data.tokenizer):
            raise FieldProblem(f"the suite asks for tokens of {self.tokenizer!r}, but the data have those of "
                               f"{self.data.tokenizer!r} (sha256 {self.data.tokenizer_sha256[:12]})", ("tokenizer",))
        if self.eval_tokens >= self.data.eval_tokens:
            raise FieldProblem(f"the data have {self.data.eval_tokens:,} tokens for validation, too few to predict "
                               f"{self.eval_tokens:,}; state at most {self.data.eval_tokens - 1}", ("eval_tokens",))
        if min(self.eval_tokens, self.data.train_tokens - 1) < self.context:
            raise FieldProblem(f"a window of {self.context:,} tokens is longer than the data: "
                               f"{self.data.train_tokens:,} for training, eval_tokens {self.eval_tokens:,}",
                               ("context",))
        return self

    @property
    def token_losses(self) -> Mapping[str, TokenKind]:
        return {METRIC: "byte" if self.data.tokenizer_sha256 == BYTES.sha256 else "token"}

    @property
    def vocabulary_here(self) -> int:
        return self.data.vocabulary

    @property
    def train_samples(self) -> int:
        return (self.data.train_tokens - 1) // self.context

    @property
    def eval_samples(self) -> int:
        return self.eval_tokens // self.context

    def opener(self) -> Callable[[], TokenStreams]:
        return partial(_opened, self.prepared(), self.eval_tokens)


def _opened(prepared: Prepared, eval_tokens: int) -> TokenStreams:
    """Return the tokens of the prepared shards, mapped into memory: nothing but their headers is read here.

    Only files of the manifest are opened: a shard that was added to the folder is none of the data.

    Raises:
        TrialError: a shard is absent, or is not as its header says.
    """
    try:
        files = [entry.path for entry in prepared.entries]
        train, evaluation = ([mapped(prepared.folder / name) for name in of_split(files, split)]
                             for split in ("train", "val"))
    except OSError as error:
        raise TrialError(f"{error.filename}: cannot be read: {error.strerror}; {prepared.again}") from error
    except UsageError as error:
        raise TrialError(f"{error}; {prepared.again}") from error
    return TokenStreams(train, evaluation, prepared.sha256, eval_tokens + 1)
