"""The prose that is shipped with this package: Jane Austen's Persuasion (1817), in the public domain; no torch."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from repro.core.errors import TrialError
from repro.seams.training import DataIdentity

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


def train_part(text: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the bytes for training: all but the last tenth."""
    return text[: len(text) - EVAL_BYTES]


def eval_part(text: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the bytes for evaluation: the last tenth."""
    return text[len(text) - EVAL_BYTES :]


def identity(train_samples: int, eval_samples: int, expected: str = SHA256) -> DataIdentity:
    """Return the identity of the book, cut into this many samples.

    Raises:
        TrialError: the file is absent, or is not the one that was shipped.
    """
    verified(expected)
    return DataIdentity(
        name=NAME,
        version=VERSION,
        sha256=expected,
        train_samples=train_samples,
        eval_samples=eval_samples,
        licence="public domain",
        source="Jane Austen, Persuasion (1817): Project Gutenberg's eBook 105, shipped with the harness",
    )


@cache
def _read() -> tuple[NDArray[np.uint8], str]:
    try:
        content = PATH.read_bytes()
    except OSError as error:
        raise TrialError(f"the prose cannot be read: {PATH}: {error.strerror}; install the package again") from error
    return np.frombuffer(content, dtype=np.uint8), hashlib.sha256(content).hexdigest()
