"""Token shards, text and tokenizers on disk: prepared once, read as written, and one line for each mistake."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from repro.core.errors import TrialError, UsageError
from repro.core.random_streams import Streams
from repro.suite.choice import parse_choice
from repro.workloads import gpt
from repro.workloads.data import prepare
from repro.workloads.gpt import IDENTITY, Gpt, TokenData, TokenForm
from repro.workloads.tokens import tokenizers
from repro.workloads.tokens.tokenizers import (
    BYTES,
    END_OF_TEXT,
    GPT2,
    Encoder,
    Part,
    encode_bytes,
    of_folder,
    pieces,
    read_ranks,
    tokenised,
)
from tests.in_process import called
from tests.made_data import silent

SMALL: dict[str, Any] = {"size": "small", "layers": 1, "width": 16, "heads": 2, "context": 16, "eval_tokens": 64}
WORDS = "The harbour was quiet, and nobody on the quay said a word.\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two shards for training and one for validation, of tokens 0, 1, 2, ..."""
    found = tmp_path / "given"
    found.mkdir()
    gpt.write(found / "fineweb_train_000001.bin", np.arange(300, dtype=np.uint16))
    gpt.write(found / "fineweb_train_000002.bin", np.arange(300, 500, dtype=np.uint16))
    gpt.write(found / "fineweb_val_000000.bin", np.arange(100, dtype=np.uint16))
    return found


def prepared(folder: Path, **options: Any) -> Gpt:
    """The workload as a suite would choose it, after `repro data prepare`."""
    prepare.prepare(TokenForm(), folder, silent)
    found: Gpt = parse_choice("workload", {"kind": "gpt", **SMALL, **options}).plugin
    return found


# ---- shards


def test_a_shard_has_llm_cs_bytes(tmp_path: Path) -> None:
    gpt.write(tmp_path / "one.bin", np.array([1, 50256, 65535], dtype=np.uint16))
    raw = (tmp_path / "one.bin").read_bytes()
    assert struct.unpack("<256i", raw[:1024]) == (20240520, 1, 3, *[0] * 253)
    assert struct.unpack("<3H", raw[1024:]) == (1, 50256, 65535)
    assert gpt.mapped(tmp_path / "one.bin").tolist() == [1, 50256, 65535]


def test_shards_are_one_stream_of_windows(folder: Path) -> None:
    workload = prepared(folder)
    assert (workload.train_samples, workload.eval_samples) == ((500 - 1) // 16, 4)
    parts = workload.build(Streams(0, 0), "cpu")
    assert parts.open_data() == workload.identity().sha256
    inputs, targets = parts.train_batch(0, np.arange(workload.train_samples))
    assert inputs.flatten().tolist() == list(range(496))
    assert targets.flatten().tolist() == list(range(1, 497))
    assert parts.eval_batch(np.array([3]))[1].tolist() == [list(range(49, 65))]
    assert workload.data.tokenizer == "gpt2"
    assert parts.model.tokens.shape == (50257, 16)


def test_a_shard_that_was_added_is_none_of_the_data(folder: Path) -> None:
    workload = prepared(folder)
    for name in ("a_train_0.bin", "a_val_0.bin"):  # sorts before the others
        gpt.write(folder / name, np.full(500, 7, dtype=np.uint16))
    parts = workload.build(Streams(0, 0), "cpu")
    assert parts.open_data() == workload.identity().sha256
    assert parts.train_batch(0, np.arange(2))[0].flatten().tolist() == list(range(32))
    assert parts.eval_batch(np.array([0]))[0].flatten().tolist() == list(range(16))


def damaged(change: Callable[[bytes], bytes], name: str = "fineweb_train_000002.bin") -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        (folder / name).write_bytes(change((folder / name).read_bytes()))

    return apply


def header(*values: int) -> Callable[[bytes], bytes]:
    return lambda raw: struct.pack(f"<{len(values)}i", *values) + raw[4 * len(values):]


def without(pattern: str) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        for path in folder.glob(pattern):
            path.unlink()

    return apply


def named(**found: Any) -> Callable[[Path], None]:
    return lambda folder: (folder / IDENTITY).write_text(json.dumps(found)) and None  # type: ignore[func-returns-value]


MISTAKES = [
    (damaged(header(1)), "is no token shard: it begins with 1, llm.c's shards with 20240520"),
    (damaged(header(20240801)), "holds 32-bit tokens"),
    (damaged(header(20240520, 2)), "is a token shard of version 2; version 1 is read"),
    (damaged(header(20240520, 1, 0)), "its header counts 0 tokens"),
    (damaged(lambda raw: raw[:-2]), "is cut off: its header counts 200 tokens, which need 1,424 bytes; it has 1,422"),
    (damaged(lambda raw: raw + b"\0\0"), "is too long: its header counts 200 tokens"),
    (damaged(lambda raw: raw[:100]), "has 100 bytes, less than the header of a token shard, 1024"),
    (damaged(lambda raw: raw[:-2] + b"\xff\xff"), "token 65535 at position 199 is beyond the vocabulary of 50,257"),
    (without("*val*"), "has no token shard named *val*.bin"),
    (without("*train*"), "has no token shard named *train*.bin"),
    (lambda folder: (folder / "train_val.bin").write_bytes(b""), "its name says both train and val"),
    (named(name="bytes", vocabulary=50257, sha256="0" * 64), "names the tokenizer bytes, but with vocabulary 50257"),
    (named(name="mine"), "is damaged"),
    (named(name="mine", vocabulary=400, sha256="0" * 64), "token 400 at position 100 is beyond the vocabulary of 400"),
]


@pytest.mark.parametrize(("mistake", "words"), MISTAKES, ids=[words for _, words in MISTAKES])
def test_a_folder_that_is_not_as_it_should_be_is_one_line(
    folder: Path, mistake: Callable[[Path], Any], words: str
) -> None:
    mistake(folder)
    ended = called("data", "prepare", "gpt", "--from", folder)
    assert isinstance(ended.exception, UsageError), ended.output
    assert words in str(ended.exception)
    assert str(folder) in str(ended.exception)


def test_too_few_tokens_are_one_line(folder: Path) -> None:
    for options, words in (({"eval_tokens": 100}, "the data have 100 tokens for validation, too few to predict 100; "
                                                  "state at most 99"),
                           ({"context": 80}, "a window of 80 tokens is longer than the data")):
        with pytest.raises(ValueError, match=words):
            prepared(folder, **options)


def test_a_tokenizer_that_differs_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="the suite asks for tokens of 'bytes', but the data have those of 'gpt2'"):
        prepared(folder, tokenizer="bytes")
    workload = prepared(folder, tokenizer="gpt2")
    # The plan is made; then other data of the same sizes are prepared with another tokenizer.
    named(name="mine", vocabulary=50257, sha256="1" * 64)(folder)
    prepare.prepare(TokenForm(), folder, silent)
    with pytest.raises(TrialError, match="tokenizer gpt2, those prepared here have mine"):
        workload.identity()


def test_data_that_changed_since_the_manifest_are_refused(folder: Path) -> None:
    workload = prepared(folder)
    path = folder / "fineweb_val_000000.bin"
    path.write_bytes(path.read_bytes()[:-2] + b"\x07\0")
    with pytest.raises(TrialError, match=r"fineweb_val_000000\.bin in .* has changed since the manifest was made"):
        workload.identity()
    path.unlink()
    with pytest.raises(TrialError, match=r"fineweb_val_000000\.bin: cannot be read: No such file"):
        workload.build(Streams(0, 0), "cpu").open_data()


def test_without_data_a_line_says_what_is_missing_and_names_the_twin() -> None:
    text = Gpt().absent()
    assert "\n" not in text
    for words in ("no /", "gpt/manifest.json", "*train*.bin", "repro data prepare gpt --from FOLDER",
                  "-o workload=gpt-synthetic"):
        assert words in text


def test_the_vocabulary_is_the_tokenizers_and_may_be_padded(folder: Path) -> None:
    workload = prepared(folder, pad_vocabulary=128)
    assert workload.shape.vocabulary == 50304
    with pytest.raises(ValidationError):
        TokenData(train_tokens=100, eval_tokens=100, tokenizer="x", tokenizer_sha256="y", vocabulary=70000)


# ---- text


def test_a_text_file_becomes_bytes_and_its_last_tenth_validation(tmp_path: Path) -> None:
    text = (WORDS * 40).encode()
    (tmp_path / "book.txt").write_bytes(text)
    workload = prepared(tmp_path / "book.txt")
    assert (workload.data.tokenizer, workload.data.vocabulary) == ("bytes", 256)
    assert workload.token_losses == {"val_loss": "byte"}
    home = workload.prepared().folder
    train, evaluation = (b"".join(gpt.mapped(path).astype(np.uint8).tobytes() for path in sorted(home.glob(name)))
                         for name in ("train*", "val*"))
    assert train + evaluation == text
    assert evaluation.startswith(b"The harbour")
    assert len(evaluation) == pytest.approx(len(text) / 10, abs=len(WORDS))
    assert json.loads((home / IDENTITY).read_text())["sha256"] == BYTES.sha256


def test_two_text_files_are_training_and_validation(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text(WORDS * 20)
    (tmp_path / "val.txt").write_text(WORDS * 3)
    workload = prepared(tmp_path)
    assert workload.data.train_tokens == 20 * len(WORDS)
    assert workload.data.eval_tokens == 3 * len(WORDS)


@pytest.mark.parametrize(("names", "words"), [
    ([], r"has neither \*\.bin nor \*\.txt"), (["a.txt", "b.txt"], r"has 2 files \*\.txt"), (["train.txt"], "is empty"),
    (["a.txt", "vocab.bpe"], r"encoder\.json: is absent; a tokenizer needs both"),
])
def test_a_folder_of_text_that_is_not_as_it_should_be(tmp_path: Path, names: list[str], words: str) -> None:
    (tmp_path / "text").mkdir()
    for name in names:
        (tmp_path / "text" / name).write_text("" if name == "train.txt" else WORDS * 20)
    with pytest.raises(UsageError, match=words):
        prepare.prepare(TokenForm(), tmp_path / "text", silent)


def test_a_text_without_lines_has_no_last_tenth(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("word " * 100)
    with pytest.raises(UsageError, match="has no start of a line; give"):
        prepare.prepare(TokenForm(), tmp_path / "one.txt", silent)


@pytest.mark.parametrize(("name", "content", "words"), [
    ("a_train.bin", WORDS.encode() * 20, r"is no \*\.txt; accepted are .*UTF-8 text.* name the folder"),
    ("a.tar.gz", WORDS.encode() * 20, r"is no \*\.txt"),
    ("a.txt", WORDS.encode() * 20 + b"\xff\n" * 3, r"is no UTF-8 at byte 1,180; accepted is UTF-8 text"),
])
def test_a_file_that_is_no_text_is_refused(
    tmp_path: Path, store: Path, name: str, content: bytes, words: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=words):
        prepare.prepare(TokenForm(), tmp_path / name, silent)
    if name.endswith(".txt"):
        with pytest.raises(UsageError, match=words):
            prepare.prepare(TokenForm(), tmp_path, silent)
    assert list(store.iterdir()) == []


def test_tokens_that_no_suite_can_use_are_not_prepared(tmp_path: Path, store: Path) -> None:
    (tmp_path / "train.txt").write_text(WORDS)
    (tmp_path / "val.txt").write_text("abc")
    with pytest.raises(UsageError, match="too few samples: eval_tokens is 3, at least 16 are needed"):
        prepare.prepare(TokenForm(), tmp_path, silent)
    assert list(store.iterdir()) == []


def test_large_texts_are_cut_into_pieces_and_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (WORDS + "\n  indented\n\n\nline \nafter\n" + "\u3000wide\n").encode() * 30
    (tmp_path / "a.txt").write_bytes(text)
    part = Part(tmp_path / "a.txt", 0, len(text))
    found = list(pieces(part, least=100))
    assert len(found) > 10
    assert b"".join(found) == text
    for before, after in pairwise(found):
        last, first = before.decode(), after.decode()
        assert not first[0].isspace()
        assert not last[-2].isspace()
        assert last[-1] == "\n"
    monkeypatch.setattr(tokenizers, "SHARD_TOKENS", 500)
    arrays = list(tokenised(part, Encoder(BYTES, encode_bytes, first=7), silent))
    assert [len(item) for item in arrays[:-1]] == [500] * (len(arrays) - 1)
    assert np.concatenate(arrays).tolist() == [7, *text]


# ---- byte pairs


def pair_files(folder: Path, merges: list[tuple[str, str]]) -> None:
    """Write a small tokenizer in GPT-2's form."""
    order = [byte for byte in range(256) if chr(byte).isprintable() and chr(byte) != " "]
    names = [chr(byte) for byte in order] + [chr(256 + index) for index in range(256 - len(order))]
    numbers = {name: index for index, name in enumerate([*names, *(first + second for first, second in merges)])}
    folder.mkdir(exist_ok=True)
    (folder / "vocab.bpe").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges), encoding="utf-8")
    (folder / "encoder.json").write_text(json.dumps({**numbers, END_OF_TEXT: len(numbers)}), encoding="utf-8")


MERGES = [("t", "h"), ("th", "e"), ("\u0120", "the"), ("a", "n")]
"""U+0120 stands for a space in GPT-2's files."""


def test_ranks_are_read_from_gpt_2s_files(tmp_path: Path) -> None:
    pair_files(tmp_path, MERGES)
    ranks = read_ranks(tmp_path)
    assert len(ranks) == 260
    assert (ranks[b"!"], ranks[b" the"], ranks[b"an"]) == (0, 258, 259)
    assert ranks[b" "] > 187  # after the printable bytes


@pytest.mark.parametrize(("name", "text", "words"), [
    ("vocab.bpe", "#version: 0.2\nonlyone\n", "is not in GPT-2's form"),
    ("encoder.json", "{", "is not in GPT-2's form"),
    ("encoder.json", '{"a": 5}', "number tokens differently"), ("vocab.bpe", "#version\n", "number tokens differently"),
])
def test_a_damaged_tokenizer_is_one_line(tmp_path: Path, name: str, text: str, words: str) -> None:
    pair_files(tmp_path, MERGES)
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=words):
        read_ranks(tmp_path)


def test_byte_pairs_are_merged_by_tiktoken(tmp_path: Path) -> None:
    pytest.importorskip("tiktoken", reason="the extra `tokenizers` is not installed")
    pair_files(tmp_path, MERGES)
    encoder = of_folder(tmp_path)
    assert (encoder.tokenizer.name, encoder.tokenizer.vocabulary, encoder.first) == ("bpe", 261, 260)
    assert encoder.encode(b"the the an").tolist()[:2] == [257, 258]
    text = (WORDS + "\n  the\n\n\nline \nthe\n").encode() * 30
    (tmp_path / "a.txt").write_bytes(text)
    cut = np.concatenate([encoder.encode(piece) for piece in pieces(Part(tmp_path / "a.txt", 0, len(text)), least=100)])
    assert cut.tolist() == encoder.encode(text).tolist()
    (tmp_path / "a.txt").write_bytes(b"good\n" * 30 + b"\xff\n" + b"good\n" * 30)
    with pytest.raises(UsageError, match="is no UTF-8 at byte 150"):
        prepare.prepare(TokenForm(), tmp_path, silent)


def test_without_tiktoken_a_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "tiktoken", None)
    pair_files(tmp_path, MERGES)
    with pytest.raises(UsageError, match="needs tiktoken: pip install tiktoken"):
        of_folder(tmp_path)


def test_identities_of_known_tokenizers_do_not_change() -> None:
    assert (GPT2.vocabulary, GPT2.sha256[:12]) == (50257, "1ce1664773c5")
    assert (BYTES.vocabulary, BYTES.sha256[:12]) == (256, "d3a519f10394")
