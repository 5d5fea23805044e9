"""GPT-2 on token shards: the nanoGPT speed-run's task, or any text that `repro data prepare gpt` has tokenised."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from repro.core.errors import TrialError, UsageError
from repro.seams.plugin import TextOption
from repro.seams.training import TokenKind
from repro.suite.field_problem import FieldProblem
from repro.workloads.data.manifest import DataForm, Facts, Prepared, Progress
from repro.workloads.data.workload import PreparedWorkload, Stated
from repro.workloads.tokens.language_model import GptModel
from repro.workloads.tokens.shape import METRIC, TokenStreams
from repro.workloads.tokens.tokenizers import BYTES, GPT2, KNOWN, Tokenizer, of_folder, parts_of, tokenised

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


IDENTITY = "tokenizer.json"
"""Names the tokenizer of the shards next to it; absent: GPT-2's, whose tokens the form was made for."""


class TokenForm(DataForm):
    """Shards named `*train*.bin` and `*val*.bin`, or text files that become such."""

    name: ClassVar[str] = "gpt"
    title: ClassVar[str] = "tokens of a text corpus"
    wanted: ClassVar[str] = (
        "a folder of token shards in llm.c's form (*train*.bin and *val*.bin, as FineWeb's for the nanoGPT speed-run), "
        "or of UTF-8 text (train.txt and val.txt, or one .txt), beside which GPT-2's vocab.bpe and encoder.json may lie"
    )
    twin: ClassVar[str] = "gpt-synthetic"
    target: ClassVar[str] = ("val_loss 3.28 nats a token with GPT-2 124M on FineWeb's first 10,485,760 tokens for "
                             "validation (nanoGPT speed-run)")
    licence: ClassVar[str] = "not known: that of the text"
    source: ClassVar[str] = "token shards or text of this machine"

    def source_folder(self, given: Path, own: Path, progress: Progress) -> Path:
        if given.is_dir() and any(given.glob("*.bin")):
            return given
        train, evaluation = parts_of(given)
        encoder = of_folder(train.path.parent)
        for name, part in (("train", train), ("val", evaluation)):
            for index, tokens in enumerate(tokenised(part, encoder, progress)):
                write(own / f"{name}_{index:06}.bin", tokens)
        identity = json.dumps(asdict(encoder.tokenizer), indent=1, sort_keys=True)
        (own / IDENTITY).write_text(identity + "\n", encoding="utf-8")
        return own

    def files(self, folder: Path) -> Sequence[str]:
        names = [path.name for split in ("train", "val") for path in shard_files(folder, split)]
        return sorted([*names, *([IDENTITY] if (folder / IDENTITY).exists() else [])])

    def examine(self, folder: Path, file: str) -> None:
        if file != IDENTITY:
            check_vocabulary(folder / file, tokenizer_of(folder).vocabulary)

    def facts(self, folder: Path, files: Sequence[str]) -> Facts:
        tokenizer = tokenizer_of(folder)
        train, evaluation = (sum(tokens_in(path) for path in shard_files(folder, split))
                             for split in ("train", "val"))
        return {"train_tokens": train, "eval_tokens": evaluation, "tokenizer": tokenizer.name,
                "tokenizer_sha256": tokenizer.sha256, "vocabulary": tokenizer.vocabulary}


def shard_files(folder: Path, split: str) -> list[Path]:
    """Return the shards of `train` or `val` in a folder, sorted by name.

    Raises:
        UsageError: there are none, or a name fits both.
    """
    found = [folder / name for name in of_split(sorted(path.name for path in folder.glob("*.bin")), split)]
    if not found:
        raise UsageError(f"{folder}: has no token shard named *{split}*.bin; wanted is {TokenForm.wanted}")
    other = "val" if split == "train" else "train"
    if both := next((path for path in found if other in path.name), None):
        raise UsageError(f"{both}: its name says both train and val; a shard is of one of them")
    return found


def of_split(files: Sequence[str], split: str) -> list[str]:
    """Return the shards of `train` or `val` among the names of a data set's files, in the given order."""
    return [name for name in files if name.endswith(".bin") and split in name]


def tokenizer_of(folder: Path) -> Tokenizer:
    """Return the tokenizer of the shards in a folder, as `tokenizer.json` names it; without one, GPT-2's.

    Raises:
        UsageError: the file is damaged, or calls another tokenizer by the name of a known one.
    """
    path = folder / IDENTITY
    if not path.exists():
        return GPT2
    try:
        read = json.loads(path.read_text("utf-8"))
        found = Tokenizer(str(read["name"]), int(read["vocabulary"]), str(read["sha256"]))
    except (ValueError, TypeError, KeyError, OSError) as error:
        raise UsageError(f"{path}: is damaged: {error!r}; it needs name, vocabulary and sha256") from error
    known = KNOWN.get(found.name)
    if known not in (None, found):
        raise UsageError(f"{path}: names the tokenizer {found.name}, but with vocabulary {found.vocabulary} and sha256 "
                         f"{found.sha256[:12]} instead of {known.vocabulary} and {known.sha256[:12]}")
    return found


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
