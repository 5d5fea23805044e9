"""Safe access to a folder of others: links are not followed, only regular files are opened, sizes are limited."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from repro.core.errors import UsageError
from repro.published.untrusted.text import DamagedInput, file_name

MAX_ENTRIES = 200_000
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
        UsageError: no such folder or file, or more than MAX_ENTRIES in it.
    """
    if not root.exists():
        raise UsageError(f"{root}: no such folder or file")
    above = full(root).parts
    if root.is_file():
        yield Found(root, file_name(root.name), tuple(map(file_name, above)))
        return
    for count, found in enumerate(_below(root, tuple(map(file_name, above))), 1):
        if count > MAX_ENTRIES:
            raise UsageError(f"{root}: has more than {MAX_ENTRIES:,} files; give the results folder inside it")
        yield found


def full(path: Path) -> Path:
    """Return `path` from the root, with `..` removed by name: nothing is opened."""
    return Path(os.path.abspath(path))  # noqa: PTH100  # Path.resolve would follow links


def _below(root: Path, above: tuple[str, ...]) -> Iterator[Found]:
    waiting: list[tuple[Path, tuple[str, ...]]] = [(root, ())]
    while waiting:
        path, inner = waiting.pop()
        here = Found(path, "/".join(inner) or ".", above + inner)
        try:
            with os.scandir(path) as listing:
                entries = sorted(islice(listing, MAX_ENTRIES + 1), key=lambda entry: entry.name)
        except OSError as error:
            yield _refused(here, f"the folder cannot be read: {error.strerror}")
            continue
        folders = []
        for entry in entries:
            name = file_name(entry.name)
            found = Found(Path(entry.path), "/".join((*inner, name)), (*above, *inner, name))
            if entry.is_symlink():
                yield _refused(found, "a symbolic link; links are not followed")
            elif entry.is_dir(follow_symlinks=False):
                if entry.name in SKIPPED_FOLDERS:
                    yield _refused(found, "a folder of version control; it is not read")
                else:
                    folders.append((found.path, (*inner, name)))
            elif entry.is_file(follow_symlinks=False):
                yield found
            else:
                yield _refused(found, "not a regular file (a pipe, socket or device)")
        waiting += reversed(folders)


def _refused(found: Found, reason: str) -> Found:
    return Found(found.path, found.source, found.parts, reason)


def open_plain(path: Path, max_bytes: int) -> BinaryIO:
    """Open a regular file for reading.

    Raises:
        DamagedInput: a link, not a regular file, larger than `max_bytes`, or it cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise DamagedInput(f"cannot be opened: {error.strerror}") from None
    state = os.fstat(descriptor)
    if not stat.S_ISREG(state.st_mode) or state.st_size > max_bytes:
        os.close(descriptor)
        raise DamagedInput(f"larger than {max_bytes >> 20} MiB" if stat.S_ISREG(state.st_mode)
                           else "not a regular file")
    return open(descriptor, "rb", buffering=0)  # noqa: PTH123  # a descriptor, not a path


def read_small(path: Path, max_bytes: int) -> bytes:
    """Read a small file completely.

    Raises:
        DamagedInput: as `open_plain`, or it grew past the limit while it was read, or holds NUL bytes.
    """
    with open_plain(path, max_bytes) as stream:
        pieces, size = [], 0
        while piece := _read(stream, 1 << 20):
            pieces.append(piece)
            size += len(piece)
            if size > max_bytes:
                raise DamagedInput(f"larger than {max_bytes >> 20} MiB")
    content = b"".join(pieces)
    if b"\0" in content:
        raise DamagedInput(f"a NUL byte at byte {content.index(0) + 1}")
    return content


def _read(stream: BinaryIO, size: int) -> bytes:
    try:
        return stream.read(size)
    except OSError as error:
        raise DamagedInput(f"cannot be read: {error.strerror}") from None
