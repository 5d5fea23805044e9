"""Safe access to a folder of others: links are not followed, only regular files are opened, sizes are limited."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from repro.core import door
from repro.core.errors import UsageError
from repro.published.untrusted.text import DamagedInput, file_name

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
