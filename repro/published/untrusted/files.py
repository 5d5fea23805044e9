"""Safe access to a folder of others: links are not followed, only regular files are opened, sizes are limited."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from repro.core import door
from repro.core.errors import ReproError, UsageError
from repro.core.files import is_deep

MAX_DEPTH = 32


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise DamagedInput(f"the key {plain(twice, 40)!r} occurs twice in one object")
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_object)


def parse(text: bytes) -> Any:
    """Parse a JSON text. NaN and Infinity become floats, which `untrusted.text.number` rejects.

    Raises:
        DamagedInput: not UTF-8, not JSON, a key twice in one object, nested deeper than MAX_DEPTH.
    """
    try:
        # strict UTF-8: latin-1 would accept any bytes and change names
        value = _DECODER.decode(text.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DamagedInput(f"not UTF-8 (byte {error.start + 1})") from None
    except RecursionError:
        raise DamagedInput(f"JSON nested deeper than {MAX_DEPTH} levels") from None
    except json.JSONDecodeError as error:
        raise DamagedInput(f"not JSON: {error.msg} at character {error.pos + 1}") from None
    except ValueError:  # a number of more digits than Python converts
        raise DamagedInput("a number in it is too long") from None
    if is_deep(value, MAX_DEPTH):
        raise DamagedInput(f"JSON nested deeper than {MAX_DEPTH} levels")
    return value


MAX_NAME = 200
"""Most characters of a name or a note."""
MAX_SETTING = 300


class DamagedInput(ReproError):
    """A damaged or malformed file of others; the message is the reason shown to readers."""


def plain(value: Any, limit: int = MAX_NAME) -> str:
    """Return `value` as encodable text: no lone surrogates, at most `limit` characters, `…` marks a cut."""
    text = value if isinstance(value, str) else str(value)
    text = text[: limit + 1].encode("utf-8", "backslashreplace").decode("utf-8")
    return text if len(text) <= limit else text[: limit - 1] + "…"


def file_name(name: str) -> str:
    """Return the name or relative path of a file as text; bytes that are not UTF-8 become escapes."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def number(value: Any) -> float | None:
    """Return `value` as a finite float; None for text, booleans, NaN, infinities and integers above 2^63."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, int) and abs(value) > 1 << 63:
        return None
    found = float(value)
    return found if math.isfinite(found) else None


def setting(value: Any) -> bool | int | float | str | None:
    """Return a setting of others; values that are not plain become text of at most `MAX_SETTING` characters."""
    if value is None or isinstance(value, bool):
        return value
    found = number(value)
    if found is not None:
        return int(value) if isinstance(value, int) else found
    return plain(value, MAX_SETTING)


def parse_object(content: bytes, reason: str) -> dict[str, Any]:
    """Parse a JSON object, which may begin with a byte order mark.

    Raises:
        DamagedInput: as `parse`; `reason`: it is another value.
    """
    data = parse(content.removeprefix(b"\xef\xbb\xbf"))
    if not isinstance(data, dict):
        raise DamagedInput(reason)
    return data


SKIPPED_FOLDERS = {".git", ".svn", ".hg"}


@dataclass(frozen=True, slots=True)
class Found:
    """One entry of the imported folder."""

    path: Path
    source: str
    """Relative to the folder, `/` between parts, always valid text."""
    parts: tuple[str, ...]
    """Names from the root of the file system; folder names describe a file."""
    refusal: str = ""
    """The reason if it is not opened; empty otherwise."""


def walk(root: Path) -> Iterator[Found]:
    """Yield every file below `root` (or the file `root`), sorted by path; links and special files have a refusal.

    Raises:
        UsageError: no such folder or file, or too many in it.
    """
    if not root.exists():
        raise UsageError(f"{root}: no such folder or file")
    above = tuple(map(file_name, full(root).parts))
    if root.is_file():
        yield Found(root, file_name(root.name), above)
        return
    for path, refusal in door.walk(root, SKIPPED_FOLDERS):
        inner = tuple(map(file_name, path.relative_to(root).parts))
        yield Found(path, "/".join(inner) or ".", above + inner, refusal)


def full(path: Path) -> Path:
    """Return `path` from the root, with `..` removed by name: nothing is opened."""
    return Path(os.path.abspath(path))  # noqa: PTH100  # Path.resolve would follow links


def open_plain(path: Path, max_bytes: int) -> BinaryIO:
    """Open a regular file for reading.

    Raises:
        DamagedInput: a link, not a regular file, larger than `max_bytes`, or it cannot be read.
    """
    try:
        handle = door.open_handle(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        raise DamagedInput(f"cannot be opened: {error.strerror}") from None
    if os.fstat(handle).st_size > max_bytes:
        os.close(handle)
        raise DamagedInput(f"larger than {max_bytes >> 20} MiB")
    return open(handle, "rb")  # noqa: PTH123  # a handle, not a path


def read_small(path: Path, max_bytes: int) -> bytes:
    """Read a small file completely.

    Raises:
        DamagedInput: as `open_plain`, or it grew past the limit while it was read, or holds NUL bytes.
    """
    with open_plain(path, max_bytes) as stream:
        try:
            content = stream.read(max_bytes + 1)
        except OSError as error:
            raise DamagedInput(f"cannot be read: {error.strerror}") from None
    if len(content) > max_bytes:
        raise DamagedInput(f"larger than {max_bytes >> 20} MiB")
    if b"\0" in content:
        raise DamagedInput(f"a NUL byte at byte {content.index(0) + 1}")
    return content


CHUNK = 1 << 20


def read_lines(path: Path, max_bytes: int, longest: int, whole: hashlib._Hash) -> Iterator[tuple[int, bytes]]:
    """Yield (number, line with its end) of a file of any size; a line ends at LF or CR, only LF counts.

    Progress bars put many CR before an event, and each of those parts is a line with the same number.

    Args:
        longest: bytes at which a line is cut.
        whole: gets all bytes of the file.

    Raises:
        DamagedInput: as `read_small`.
    """
    held, line, size = b"", 1, 0
    with open_plain(path, max_bytes) as stream:
        while True:
            try:
                piece = stream.read(CHUNK)
            except OSError as error:
                raise DamagedInput(f"cannot be read: {error.strerror}") from None
            size += len(piece)
            if size > max_bytes:
                raise DamagedInput(f"larger than {max_bytes >> 20} MiB")
            if b"\0" in piece:
                raise DamagedInput(f"line {line + held.count(10) + piece.count(10, 0, piece.index(0))}: a NUL byte")
            whole.update(piece)
            parts = (held + piece).splitlines(keepends=True)
            held = parts.pop() if piece and parts and not parts[-1].endswith(b"\n") else b""
            for part in parts:
                yield line, part[:longest]
                line += part.endswith(b"\n")
            if not piece:
                return
            held = held[:longest]
