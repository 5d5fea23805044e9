"""The data of `gpt` on disk: token shards, or text that is tokenised once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import ClassVar

from repro.core.errors import UsageError
from repro.workloads.data.form import DataForm, Facts, Progress
from repro.workloads.tokens import shards
from repro.workloads.tokens.text_files import parts_of, tokenised
from repro.workloads.tokens.tokenizers import BYTES, GPT2, Tokenizer, of_folder

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
                shards.write(own / f"{name}_{index:06}.bin", tokens)
        identity = json.dumps(asdict(encoder.tokenizer), indent=1, sort_keys=True)
        (own / IDENTITY).write_text(identity + "\n", encoding="utf-8")
        return own

    def files(self, folder: Path) -> Sequence[str]:
        names = [path.name for split in ("train", "val") for path in shard_files(folder, split)]
        return sorted([*names, *([IDENTITY] if (folder / IDENTITY).exists() else [])])

    def examine(self, folder: Path, file: str) -> None:
        if file != IDENTITY:
            shards.check_vocabulary(folder / file, tokenizer_of(folder).vocabulary)

    def facts(self, folder: Path, files: Sequence[str]) -> Facts:
        tokenizer = tokenizer_of(folder)
        train, evaluation = (sum(shards.tokens_in(path) for path in shard_files(folder, split))
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
    known = {item.name: item for item in (BYTES, GPT2)}.get(found.name)
    if known not in (None, found):
        raise UsageError(f"{path}: names the tokenizer {found.name}, but with vocabulary {found.vocabulary} and sha256 "
                         f"{found.sha256[:12]} instead of {known.vocabulary} and {known.sha256[:12]}")
    return found
