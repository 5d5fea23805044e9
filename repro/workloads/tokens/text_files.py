"""Text files that become tokens: their parts for training and evaluation, read piece by piece."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from repro.core.errors import UsageError
from repro.workloads.data.form import Progress
from repro.workloads.tokens.tokenizers import Encoder

PIECE = 4 << 20
"""Bytes that are tokenised at once, at least."""
SHARD_TOKENS = 100_000_000
EVAL_SHARE = 10
"""Of a single file the last tenth is for evaluation."""
TRAIN, EVALUATION = "train.txt", "val.txt"


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a text file, in bytes."""

    path: Path
    start: int
    end: int


def parts_of(given: Path) -> tuple[Part, Part]:
    """Return the text for training and for evaluation: `train.txt` and `val.txt`, or one file cut at a line's start.

    Args:
        given: a text file, or a folder.

    Raises:
        UsageError: there is no text, more than one, or too little; or the file is not called `*.txt`.
    """
    if given.is_file() and given.suffix != ".txt":
        raise UsageError(f"{given}: is no *.txt; accepted are one file of UTF-8 text (*.txt), or a folder: for token "
                         f"shards (*.bin) name the folder that holds them")
    texts = [given] if given.is_file() else sorted(given.glob("*.txt"))
    names = {path.name for path in texts}
    if {TRAIN, EVALUATION} <= names:
        return whole(given / TRAIN), whole(given / EVALUATION)
    if len(texts) != 1:
        found = f"{len(texts)} files *.txt" if texts else "neither *.bin nor *.txt"
        raise UsageError(f"{given}: has {found}; wanted are shards (*train*.bin and *val*.bin), or {TRAIN} and "
                         f"{EVALUATION}, or one text file")
    text = whole(texts[0])
    with text.path.open("rb") as stream:
        stream.seek(text.end - text.end // EVAL_SHARE)
        stream.readline()
        cut = stream.tell()
    if not 0 < cut < text.end:
        raise UsageError(f"{text.path}: its last tenth, which is for evaluation, has no start of a line; give {TRAIN} "
                         f"and {EVALUATION}")
    return Part(text.path, 0, cut), Part(text.path, cut, text.end)


def whole(path: Path) -> Part:
    """Return all of a text file.

    Raises:
        UsageError: it is empty.
    """
    if not (size := path.stat().st_size):
        raise UsageError(f"{path}: is empty")
    return Part(path, 0, size)


def tokenised(part: Part, encoder: Encoder, progress: Progress) -> Iterator[NDArray[np.uint16]]:
    """Yield the tokens of a part in arrays of at most `SHARD_TOKENS`.

    Raises:
        UsageError: the text is no UTF-8, whatever the tokenizer.
    """
    waiting = [] if encoder.first is None else [np.array([encoder.first], dtype=np.uint16)]
    stage = f"tokens of {part.path.name} from byte {part.start}"
    progress(stage, done := 0, part.end - part.start)
    for piece in pieces(part):
        try:
            piece.decode()
        except UnicodeDecodeError as error:
            raise UsageError(f"{part.path}: is no UTF-8 at byte {part.start + done + error.start:,}; accepted is UTF-8 "
                             "text (*.txt); for token shards (*.bin) name the folder that holds them") from error
        waiting.append(encoder.encode(piece))
        progress(stage, done := done + len(piece), part.end - part.start)
        if sum(map(len, waiting)) >= SHARD_TOKENS:
            joined = np.concatenate(waiting)
            yield joined[:SHARD_TOKENS]
            waiting = [joined[SHARD_TOKENS:]]
    if sum(map(len, waiting)):
        yield np.concatenate(waiting)


def pieces(part: Part, least: int = PIECE) -> Iterator[bytes]:
    """Yield the text in pieces of whole lines.

    A piece ends where a tokenizer that splits at white space splits anyway: before a line that begins with a visible
    character, after a line that has one directly before its line feed. The tokens are then those of the whole text.
    """
    lines: list[bytes] = []
    held = 0
    with part.path.open("rb") as stream:
        stream.seek(part.start)
        left = part.end - part.start
        while left and (line := stream.readline(left)):
            left -= len(line)
            if held >= least and _may_cut(lines[-1], line):
                yield b"".join(lines)
                lines, held = [], 0
            lines.append(line)
            held += len(line)
    if lines:
        yield b"".join(lines)


def _may_cut(before: bytes, line: bytes) -> bool:
    last, first = before.decode(errors="replace")[-2:-1], line.decode(errors="replace")[:1]
    return bool(last) and not last.isspace() and not first.isspace()
