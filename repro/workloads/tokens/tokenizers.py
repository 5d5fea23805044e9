"""Tokenizers that turn text into tokens of at most 16 bits, and what identifies them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from repro.core.errors import UsageError
from repro.workloads.data.manifest import Progress

MERGES, RANKS = "vocab.bpe", "encoder.json"
"""GPT-2's files, as OpenAI published them; both are needed."""
GPT2_SHA256 = "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"
"""Of `vocab.bpe`, as tiktoken states it; its merges determine every token."""
END_OF_TEXT = "<|endoftext|>"
GPT2_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
"""Splits text before merging; as tiktoken writes GPT-2's."""
LARGEST_VOCABULARY = 1 << 16


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """The identity of a tokenizer: the same tokens mean the same text."""

    name: str
    vocabulary: int
    """Number of different tokens."""
    sha256: str
    """Of what determines its tokens."""


BYTES = Tokenizer("bytes", 256, sha256(b"token = byte").hexdigest())
GPT2 = Tokenizer("gpt2", 50257, GPT2_SHA256)
KNOWN = {"bytes": BYTES, "gpt2": GPT2}


@dataclass(frozen=True, slots=True)
class Encoder:
    """A tokenizer that can be used."""

    tokenizer: Tokenizer
    encode: Callable[[bytes], NDArray[np.uint16]]
    first: int | None = None
    """Token before every text, as llm.c's shards have it; None: none."""


def of_folder(folder: Path) -> Encoder:
    """Return the tokenizer whose files lie in a folder of text, in GPT-2's form; without files, bytes.

    Raises:
        UsageError: one of the two files is absent or damaged, or tiktoken is not installed. Nothing is downloaded.
        OSError: a file cannot be read.
    """
    present = [name for name in (MERGES, RANKS) if (folder / name).exists()]
    if not present:
        return Encoder(BYTES, encode_bytes)
    if len(present) == 1:
        other = RANKS if present == [MERGES] else MERGES
        raise UsageError(f"{folder / other}: is absent; a tokenizer needs both {MERGES} and {RANKS} (without either, "
                         "each byte is a token)")
    return byte_pairs(folder)


def encode_bytes(text: bytes) -> NDArray[np.uint16]:
    """Return each byte as a token."""
    return np.frombuffer(text, dtype=np.uint8).astype(np.uint16)


def byte_pairs(folder: Path) -> Encoder:
    """Return the byte-pair encoding of `vocab.bpe` and `encoder.json`, carried out by tiktoken.

    Raises:
        UsageError: tiktoken is not installed, or the files are damaged.
        OSError: a file cannot be read.
    """
    try:
        import tiktoken
    except ImportError as error:
        raise UsageError(f"{folder / MERGES}: tokenising with it needs tiktoken: pip install tiktoken (nothing else is "
                         "downloaded)") from error
    ranks = read_ranks(folder)
    if len(ranks) + 1 > LARGEST_VOCABULARY:
        raise UsageError(f"{folder / RANKS}: {len(ranks) + 1:,} tokens; shards hold 16-bit tokens, at most "
                         f"{LARGEST_VOCABULARY:,}")
    end = len(ranks)
    encoding = tiktoken.Encoding(
        "files", pat_str=GPT2_PATTERN, mergeable_ranks=ranks, special_tokens={END_OF_TEXT: end}
    )
    identity = sha256((folder / MERGES).read_bytes()).hexdigest()
    name = "gpt2" if identity == GPT2_SHA256 else "bpe"

    def encode(text: bytes) -> NDArray[np.uint16]:
        return np.array(encoding.encode_ordinary(text.decode()), dtype=np.uint16)

    return Encoder(Tokenizer(name, end + 1, identity), encode, end)


def read_ranks(folder: Path) -> dict[bytes, int]:
    """Return token bytes -> number by `vocab.bpe`, which must agree with `encoder.json`.

    GPT-2 writes bytes as printable characters; `vocab.bpe` lists merges in their order after a line with its version.
    tiktoken's own reader keeps a copy by the name of the file and would not see that the file has changed.

    Raises:
        UsageError: a file is damaged, or the two disagree.
        OSError: a file cannot be read.
    """
    order = [byte for byte in range(256) if chr(byte).isprintable() and chr(byte) != " "]
    rest = [byte for byte in range(256) if byte not in order]
    byte_of = {chr(byte): byte for byte in order} | {chr(256 + index): byte for index, byte in enumerate(rest)}
    ranks = {bytes([byte]): index for index, byte in enumerate([*order, *rest])}
    try:
        for line in filter(None, (folder / MERGES).read_text("utf-8").split("\n")[1:]):
            first, second = line.split()
            ranks[bytes(byte_of[char] for char in first + second)] = len(ranks)
        written = json.loads((folder / RANKS).read_text("utf-8"))
        stated = {bytes(byte_of[char] for char in text): number
                  for text, number in written.items() if text != END_OF_TEXT}
    except (ValueError, KeyError, AttributeError) as error:
        raise UsageError(f"{folder}: {MERGES} or {RANKS} is not in GPT-2's form: {error}") from error
    if stated != ranks:
        raise UsageError(f"{folder}: {MERGES} and {RANKS} do not belong together: they number tokens differently")
    return ranks


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
