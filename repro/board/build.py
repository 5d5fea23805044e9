"""Read all records of a folder side by side in several processes, and write their pages."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from repro.board.entry import Entry
from repro.board.read import Render, read_entry
from repro.core import orphans
from repro.core.errors import OutputError, UsageError
from repro.core.files import read_model, write_model, write_text
from repro.core.frozen import Frozen
from repro.core.machine import count_cores

NAME = "board.json"
Written = Annotated[str, Field(pattern=r"^(index\.html|pages/[^/\x00]+\.html)$")]
"""Path of a file below the site; no path leads out of it."""


class Manifest(Frozen):
    """Content of `board.json`."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    files: tuple[Written, ...]


@dataclass(frozen=True, slots=True)
class Site:
    """A folder that only builds of boards write to."""

    folder: Path
    earlier: frozenset[str]
    """Files that earlier builds wrote, or were about to write."""

    def start(self, planned: Iterable[str]) -> None:
        """List the files that this build may write, before it writes any: it may be killed at any time.

        Raises:
            UsageError: one of them exists and was not written by a build.
            OutputError: the folder cannot be written.
        """
        planned = frozenset(planned)
        for name in sorted(planned - self.earlier):
            if (self.folder / name).exists():
                raise UsageError(f"{self.folder / name}: was not written by `repro board`; move it away, or choose "
                                 "another folder with --out")
        self._list(self.earlier | planned)

    def finish(self, written: Iterable[str]) -> None:
        """Delete the files of earlier builds that are no part of this one.

        Raises:
            OutputError: the folder cannot be written.
        """
        written = frozenset(written)
        for name in sorted(self.earlier - written):
            try:
                (self.folder / name).unlink(missing_ok=True)
            except OSError as error:
                raise OutputError(f"{self.folder / name}: cannot be deleted: {error.strerror}") from error
        self._list(written)

    def _list(self, names: frozenset[str]) -> None:
        write_model(self.folder / NAME, Manifest(files=tuple(sorted(names))))


def open_site(folder: Path) -> Site:
    """Return the site in a folder, which may be missing or empty.

    Raises:
        UsageError: the folder holds files, but no site.
    """
    manifest = folder / NAME
    if manifest.is_file():
        return Site(folder, frozenset(read_model(manifest, Manifest).files))
    if folder.is_dir() and any(folder.iterdir()):
        raise UsageError(f"{folder}: is not empty and holds no site of `repro board` (it has no {NAME}); name a new or "
                         "empty folder with --out, or delete a site that an older version made")
    return Site(folder, frozenset())


def read_records(paths: Sequence[Path], folder: Path, out: Path, render: Render) -> list[Entry]:
    """Return the entries of records below `folder`, and write the page of each to `out`/pages.

    Raises:
        OutputError: `out` cannot be written.
    """
    processes = min(len(paths), count_cores() + 1)  # one waits for the disk
    work = partial(_read, top=folder, out=out, render=render)
    if processes == 1:
        return list(map(work, paths))
    owner = orphans.identity(os.getpid())
    with ProcessPoolExecutor(max_workers=processes, initializer=_end_with, initargs=(owner,)) as pool:
        return list(pool.map(work, paths, chunksize=4))


def _end_with(owner: str) -> None:
    """Have this process end with the one that started it, also after kill -9."""
    orphans.signal_at_parent_exit(signal.SIGKILL)
    if orphans.is_over(owner):  # it ended before the line above
        os._exit(1)


def page_name(place: str) -> str:
    """Return the path of a record's page below the site: its path in words, and a hash that keeps two apart."""
    words = "".join(letter if letter.isalnum() else "-" for letter in place.removesuffix(".zip"))
    return f"pages/{words[:60].strip('-')}-{sha256(place.encode()).hexdigest()[:8]}.html"


def _read(path: Path, top: Path, out: Path, render: Render) -> Entry:
    entry, text = read_entry(path, top, render)
    if text:
        write_text(out / page_name(entry.place), text)
    return entry
