"""Token shards as llm.c writes them.

256 little-endian int32 (magic 20240520, version 1, number of tokens, zeros), then the tokens as uint16.
Source: llm.c, dev/data/data_common.py (`write_datafile`) and llmc/dataloader.h, which reads them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from repro.core.errors import UsageError

MAGIC = 20240520
MAGIC_UINT32 = 20240801
"""llm.c's form for vocabularies that do not fit 16 bits (Llama 3)."""
VERSION = 1
HEADER_INTS = 256
HEADER_BYTES = 4 * HEADER_INTS
CHUNK = 1 << 22
"""Tokens read at once to find the largest."""


def tokens_in(path: Path) -> int:
    """Return the number of tokens of a shard by its header, which must fit the size of the file.

    Raises:
        UsageError: it is no shard, of another version, or cut off.
        OSError: it cannot be read.
    """
    with path.open("rb") as stream:
        head = stream.read(HEADER_BYTES)
    size = path.stat().st_size
    if len(head) < HEADER_BYTES:
        raise UsageError(f"{path}: has {size} bytes, less than the header of a token shard, {HEADER_BYTES}")
    magic, version, tokens = np.frombuffer(head, dtype="<i4")[:3].tolist()
    if magic == MAGIC_UINT32:
        raise UsageError(f"{path}: holds 32-bit tokens (magic {magic}, llm.c's form for Llama 3); 16-bit tokens with "
                         f"magic {MAGIC} are read")
    if magic != MAGIC:
        raise UsageError(f"{path}: is no token shard: it begins with {magic}, llm.c's shards with {MAGIC}")
    if version != VERSION:
        raise UsageError(f"{path}: is a token shard of version {version}; version {VERSION} is read")
    if tokens < 1:
        raise UsageError(f"{path}: its header counts {tokens} tokens")
    expected = HEADER_BYTES + 2 * tokens
    if size != expected:
        how = "is cut off" if size < expected else "is too long"
        raise UsageError(f"{path}: {how}: its header counts {tokens:,} tokens, which need {expected:,} bytes; it has "
                         f"{size:,}")
    return int(tokens)


def mapped(path: Path) -> NDArray[np.uint16]:
    """Return the tokens of a shard as a read-only memory map.

    Raises:
        UsageError: it is no shard, of another version, or cut off.
        OSError: it cannot be read.
    """
    return np.memmap(path, dtype="<u2", mode="r", offset=HEADER_BYTES, shape=(tokens_in(path),))


def check_vocabulary(path: Path, vocabulary: int) -> None:
    """Read every token of a shard and compare it with the vocabulary.

    Raises:
        UsageError: a token is beyond it, or the file is no shard.
        OSError: it cannot be read.
    """
    tokens = mapped(path)
    for start in range(0, len(tokens), CHUNK):
        piece = tokens[start : start + CHUNK]
        if int(piece.max()) >= vocabulary:
            position = start + int(np.argmax(piece >= vocabulary))
            raise UsageError(f"{path}: token {int(tokens[position])} at position {position:,} is beyond the vocabulary "
                             f"of {vocabulary:,}: the shard was made with another tokenizer")


def write(path: Path, tokens: NDArray[np.uint16]) -> None:
    """Write a shard.

    Raises:
        OSError: it cannot be written.
    """
    header = np.zeros(HEADER_INTS, dtype="<i4")
    header[:3] = MAGIC, VERSION, len(tokens)
    with path.open("wb") as stream:
        stream.write(header.tobytes())
        stream.write(np.ascontiguousarray(tokens, dtype="<u2").data)
