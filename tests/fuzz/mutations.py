"""Damage done to valid inputs: to bytes, to lines of text, to the tree of a JSON text, to a zip's directory.

Every function takes a `random.Random`; Hypothesis hands in one whose choices it controls, atheris one made of its seed.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import stat
import struct
import warnings
import zipfile
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from tests.fuzz.dictionary import HOSTILE, WORDS

Mutator = Callable[[bytes, Random], bytes]
LARGEST = 1 << 20
"""Bytes of an input; what is larger is made by the inputs written down in `corpus`."""


def raw(data: bytes, rng: Random) -> bytes:
    """One edit of bytes: cut, flip, overwrite, insert a word, delete, repeat or move a piece."""
    if not data:
        return rng.choice(WORDS)
    at, length = rng.randrange(len(data)), rng.choice((1, 2, 8, 40, 300))
    return rng.choice((_cut, _flip, _overwrite, _insert, _delete, _repeat, _splice))(data, at, length, rng)[:LARGEST]


def _cut(data: bytes, at: int, length: int, rng: Random) -> bytes:
    return data[:at] if rng.random() < 0.7 else data[at:]


def _flip(data: bytes, at: int, length: int, rng: Random) -> bytes:
    return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]


def _overwrite(data: bytes, at: int, length: int, rng: Random) -> bytes:
    word = rng.choice(WORDS)
    return data[:at] + word + data[at + len(word) :]


def _insert(data: bytes, at: int, length: int, rng: Random) -> bytes:
    return data[:at] + rng.choice(WORDS) + data[at:]


def _delete(data: bytes, at: int, length: int, rng: Random) -> bytes:
    return data[:at] + data[at + length :]


def _repeat(data: bytes, at: int, length: int, rng: Random) -> bytes:
    return data[:at] + data[at : at + length] * rng.choice((2, 3, 100)) + data[at + length :]


def _splice(data: bytes, at: int, length: int, rng: Random) -> bytes:
    other = rng.randrange(len(data))
    return data[:at] + data[other : other + length] + data[at:]


def lines(data: bytes, rng: Random) -> bytes:
    """One edit of whole lines: drop, double, swap, or damage one of them."""
    rows = data.split(b"\n")
    one, other = rng.randrange(len(rows)), rng.randrange(len(rows))
    how = rng.randrange(4)
    if how == 0:
        del rows[one]
    elif how == 1:
        rows.insert(other, rows[one])
    elif how == 2:
        rows[one], rows[other] = rows[other], rows[one]
    else:
        rows[one] = raw(rows[one], rng)
    return b"\n".join(rows)[:LARGEST]


def tree(data: bytes, rng: Random) -> bytes:
    """One edit of a JSON value's tree; other text is edited as bytes."""
    try:
        text = _dumped(grown(json.loads(data), rng))
    except (ValueError, RecursionError):  # deep enough as it is
        return raw(data, rng)
    if rng.random() < 0.1:
        text = _twice(text)
    return text[:LARGEST]


def _dumped(value: Any) -> bytes:
    with contextlib.suppress(ValueError):
        return json.dumps(value).encode("utf-8", "surrogatepass")
    return b"1" * 6000  # a number longer than Python writes


def grown(value: Any, rng: Random) -> Any:
    """A copy of `value` in which one place holds another value, none, or one from elsewhere in the tree."""
    value = copy.deepcopy(value)
    places = _places(value)
    if not places:
        return rng.choice(HOSTILE)
    holder, key = rng.choice(rng.choice(places))
    how = rng.randrange(12)
    if how == 0:
        del holder[key]
    elif how == 1:
        other, from_ = rng.choice(rng.choice(places))
        holder[key] = copy.deepcopy(other[from_])
    elif how == 2 and isinstance(holder, dict):
        holder[rng.choice(("", "x", "schema", "kind", "\0", "a.b"))] = rng.choice(HOSTILE)
    elif how == 3 and isinstance(holder, list):
        holder.extend(copy.deepcopy(holder[key]) for _ in range(rng.choice((1, 2, 50))))
    elif how == 4:
        for _ in range(rng.choice((3, 25, 400))):
            holder[key] = [holder[key]]
    elif how == 5 and isinstance(holder[key], int | float) and not isinstance(holder[key], bool):
        holder[key] = _figure(holder[key], rng)
    else:
        holder[key] = rng.choice(HOSTILE)
    return value


def _figure(value: float, rng: Random) -> Any:
    with contextlib.suppress(OverflowError, ValueError):
        return rng.choice(
            (
                -value,
                value * 1e300,
                value * 1e-300,
                value + 1,
                value - 1,
                value * 10**15,
                -value * 10**15,
                float(value),
                int(value),
            )
        )
    return 0


def _places(value: Any) -> list[list[tuple[Any, Any]]]:
    """Every place of a tree, those that differ only in a list's index together: each field gets its turn."""
    found: dict[tuple[str, ...], list[tuple[Any, Any]]] = {}
    waiting: list[tuple[tuple[str, ...], Any]] = [((), value)]
    while waiting:
        path, holder = waiting.pop()
        items = (
            list(holder.items())
            if isinstance(holder, dict)
            else (list(enumerate(holder)) if isinstance(holder, list) else [])
        )
        for key, inner in items:
            below = (*path, str(key) if isinstance(holder, dict) else "")
            found.setdefault(below, []).append((holder, key))
            waiting.append((below, inner))
    return list(found.values())


def _twice(text: bytes) -> bytes:
    """The first key of an object once more."""
    end = text.find(b",")
    return text.replace(b"{", text[:end] + b",", 1) if text.startswith(b"{") and end > 0 else text


def rows_of_json(data: bytes, rng: Random) -> bytes:
    """One line of a file of JSON lines, damaged as a tree; also lines that begin with a token (`:::MLLOG {...}`)."""
    rows = data.split(b"\n")
    place = rng.randrange(len(rows))
    start = max(rows[place].find(b"{"), 0)
    rows[place] = rows[place][:start] + tree(rows[place][start:], rng)
    return b"\n".join(rows)[:LARGEST]


def text_or(structured: Mutator) -> Mutator:
    """Some edits, half of them structured, half of bytes and lines."""

    def mutate(data: bytes, rng: Random) -> bytes:
        for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
            data = rng.choice((structured, structured, structured, raw, lines))(data, rng)
        return data

    return mutate


def yaml_tree(data: bytes, rng: Random) -> bytes:
    """One edit of a YAML file's tree, written again in flow or in block style."""
    import yaml

    try:
        value = yaml.safe_load(data)
        changed = grown(value, rng)
        return bytes(yaml.safe_dump(changed, default_flow_style=rng.random() < 0.3, allow_unicode=True).encode())
    except (yaml.YAMLError, ValueError, RecursionError, AttributeError, TypeError, KeyError, IndexError):
        return raw(data, rng)


def in_file(inner: Mapping[str, Mutator]) -> Mutator:
    """Edits of an input with a file's name, a newline, and its content; the name's ending selects the edit."""

    def mutate(data: bytes, rng: Random) -> bytes:
        name, _, content = data.partition(b"\n")
        ending = name.decode("utf-8", "replace").rpartition(".")[2]
        return name + b"\n" + inner.get(ending, text_or(raw))(content, rng)

    return mutate


NAMES = (
    "../evil",
    "/etc/evil",
    "a/../../evil",
    "C:evil",
    "a\\b",
    "x" * 500,
    "/".join("abcdefghij"),
    "plan.json",
    "plan.json/x",
    "",
    "trials/",
    "trials",
    "\0",
    "plan.json\0.txt",
    "é" * 10,
    "run.lock",
    ".plan.json.tmp",
    "trials/.x.tmp",
    "report/report.html",
    "sha256sums.txt",
    "a\nb",
)


def archive(data: bytes, rng: Random) -> bytes:
    """One edit of a zip: a member's content, name, kind or flags, or the bytes of its directory."""
    how = rng.randrange(5)
    if how == 0:
        return raw(data, rng)
    if how == 1:
        return _headers(data, rng)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as source:
            members = [(item, source.read(item)) for item in source.infolist()[:400]]
    except Exception:
        return raw(data, rng)
    if not members:
        return raw(data, rng)
    place = rng.randrange(len(members))
    info, content = members[place]
    if how == 2:
        ending = info.filename.rpartition(".")[2]
        members[place] = (info, ENDINGS.get(ending, raw)(content, rng))
    elif how == 3:
        other = zipfile.ZipInfo(rng.choice(NAMES))
        other.external_attr = (
            rng.choice((0, stat.S_IFREG | 0o644, stat.S_IFLNK | 0o777, stat.S_IFIFO, stat.S_IFDIR)) << 16
        )
        members.append((other, rng.choice((b"", b"/etc/passwd", content, bytes(3 << 20)))))
    else:
        del members[place]
    return _packed(members, rng)


def _packed(members: list[tuple[zipfile.ZipInfo, bytes]], rng: Random) -> bytes:
    target, method = io.BytesIO(), rng.choice((zipfile.ZIP_DEFLATED,) * 6 + (zipfile.ZIP_STORED, zipfile.ZIP_LZMA))
    with warnings.catch_warnings(), contextlib.suppress(ValueError, UnicodeError):
        warnings.simplefilter("ignore")  # a name twice is meant
        with zipfile.ZipFile(target, "w", method) as made:
            for info, content in members:
                entry = zipfile.ZipInfo(info.filename)
                entry.external_attr, entry.compress_type = info.external_attr, method
                made.writestr(entry, content)
    return target.getvalue()


def _headers(data: bytes, rng: Random) -> bytes:
    """Another value in a field of a local header, a directory entry or the end record: flags, crc, sizes, offset."""
    sign, fields = rng.choice(
        (
            (b"PK\3\4", ((6, "<H"), (8, "<H"), (14, "<L"), (18, "<L"), (22, "<L"), (26, "<H"), (28, "<H"))),
            (
                b"PK\1\2",
                (
                    (8, "<H"),
                    (10, "<H"),
                    (16, "<L"),
                    (20, "<L"),
                    (24, "<L"),
                    (28, "<H"),
                    (30, "<H"),
                    (38, "<L"),
                    (42, "<L"),
                ),
            ),
            (b"PK\5\6", ((8, "<H"), (10, "<H"), (12, "<L"), (16, "<L"), (20, "<H"))),
        )
    )
    starts = [at for at in range(len(data) - 46) if data.startswith(sign, at)] or [data.rfind(b"PK\5\6")]
    at, (offset, form) = rng.choice(starts), rng.choice(fields)
    if at < 0 or at + offset + 4 > len(data):
        return raw(data, rng)
    size = struct.calcsize(form)
    value = rng.choice((0, 1, 2, 8, 0x41, 99, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFE, 0xFFFFFFFF)) & (
        (1 << 8 * size) - 1
    )
    return data[: at + offset] + struct.pack(form, value) + data[at + offset + size :]


ENDINGS: Mapping[str, Mutator] = {
    "json": text_or(tree),
    "jsonl": text_or(rows_of_json),
    "txt": text_or(rows_of_json),
    "yaml": text_or(yaml_tree),
    "log": text_or(raw),
    "tsv": text_or(lines),
}
