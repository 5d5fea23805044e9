"""A novel that is shipped with the package, read byte by byte by a small GPT: a language model that needs nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from repro.core.errors import TrialError
from repro.seams.training import DataIdentity, TokenKind
from repro.workloads.tokens.language_model import LanguageModel
from repro.workloads.tokens.shape import Shape, TokenStreams

NAME = "persuasion"
VERSION = "1"
PATH = Path(__file__).parent / "prose" / "persuasion.txt"
"""`SOURCE.txt` next to it states its origin and why it is in the public domain."""
SHA256 = "f2904d85c46c4201e23cd1bf837d1690decbc9512c01f457ae40d0d44f5e7ba4"
"""Of the file's bytes."""
BYTES = 466_726
EVAL_BYTES = BYTES // 10
"""The end of the book is for evaluation: neighbouring windows of one text are alike, so a random split would leak."""
VOCABULARY = 256


def verified(expected: str = SHA256) -> NDArray[np.uint8]:
    """Return the bytes of the book.

    Raises:
        TrialError: the file is absent, or is not the one that was shipped.
    """
    text, sha256 = _read()
    if sha256 != expected:
        raise TrialError(f"the prose in {PATH} has sha256 {sha256}, not {expected}: the file was changed after it was "
                         "installed; install the package again")
    return text


@cache
def _read() -> tuple[NDArray[np.uint8], str]:
    try:
        content = PATH.read_bytes()
    except OSError as error:
        raise TrialError(f"the prose cannot be read: {PATH}: {error.strerror}; install the package again") from error
    return np.frombuffer(content, dtype=np.uint8), hashlib.sha256(content).hexdigest()


class Text(LanguageModel):
    """Jane Austen's Persuasion, 467 kB; the last tenth of the book is for evaluation. A token is a byte."""

    title: ClassVar[str] = "English prose by bytes, small GPT"
    token: ClassVar[TokenKind] = "byte"
    reference_samples_per_second: ClassVar[float] = 900.0
    sha256: ClassVar[str] = SHA256

    context: int = Field(default=64, ge=8, le=1024, description="bytes of a window, which is one sample")
    layers: int = Field(default=2, ge=1, le=48)
    heads: int = Field(default=4, ge=1, le=64)
    width: int = Field(default=64, ge=8, le=4096, description="channels of the residual stream; heads must divide it")
    dropout: float = Field(default=0.0, ge=0, lt=1)

    @property
    def vocabulary_here(self) -> int:
        return VOCABULARY

    @property
    def shape(self) -> Shape:
        return Shape(VOCABULARY, self.context, self.layers, self.heads, self.width, self.dropout)

    @property
    def train_samples(self) -> int:
        return (BYTES - EVAL_BYTES - 1) // self.context

    @property
    def eval_samples(self) -> int:
        return (EVAL_BYTES - 1) // self.context

    def identity(self) -> DataIdentity:
        verified(self.sha256)
        return DataIdentity(
            name=NAME, version=VERSION, sha256=self.sha256, train_samples=self.train_samples,
            eval_samples=self.eval_samples, licence="public domain",
            source="Jane Austen, Persuasion (1817): Project Gutenberg's eBook 105, shipped with the harness",
        )

    def opener(self) -> Callable[[], TokenStreams]:
        return partial(split, self.sha256)


def split(sha256: str = SHA256) -> TokenStreams:
    """Return the book, whose content is checked: all but the last tenth is for training."""
    text = verified(sha256)
    return TokenStreams([text[:-EVAL_BYTES]], [text[-EVAL_BYTES:]], sha256)
