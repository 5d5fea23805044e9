"""Read all records of a folder side by side in several processes, and write their pages."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from repro.board.entry import Entry
from repro.board.read import Render, read_entry
from repro.core import orphans
from repro.core.errors import OutputError, UsageError
from repro.core.files import read_model, write_model, write_text
from repro.core.frozen import Frozen
from repro.core.machine import count_cores
from repro.record.folder.index import file_sha256

NAME = "board.json"
Written = Annotated[str, Field(pattern=r"^(index\.html|pages/[^/\x00]+\.html|read/[^/\x00]+\.json)$")]
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


CACHE = "read"
PACKAGES = ("repro", "repro.reporters", "repro.templates")
LIBRARIES = ("numpy", "scipy", "pydantic", "jinja2")
"""What computes and renders."""


def code_digest() -> str:
    """Return a hash of every file of this package, of Python, and of `LIBRARIES`: of what decides facts and pages."""
    digest = sha256(f"{sys.version} {[version(name) for name in LIBRARIES]}".encode())
    for name in PACKAGES:
        root = Path(import_module(name).__path__[0])
        for path in sorted(root.rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                digest.update(f"{name} {path.relative_to(root)} {file_sha256(path)}".encode())
    return digest.hexdigest()


class Known(Frozen):
    """The facts of a bundle that was read before."""

    key: str
    """Hash of the bundle, and of the code that read it."""
    entry: Entry


def read_records(paths: Sequence[Path], folder: Path, out: Path, render: Render, code: str) -> list[Entry]:
    """Return the entries of records below `folder`, and write the page of each to `out`/pages.

    What was read before, by the same code from a bundle of the same hash, is taken from `out`/read.

    Args:
        code: hash of the code, as `code_digest` gives it.

    Raises:
        OutputError: `out` cannot be written.
    """
    processes = min(len(paths), count_cores() + 1)  # one waits for the disk
    work = partial(_read, top=folder, out=out, render=render, code=code)
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
    """Return the name of a record's page: its path in words, and a hash that keeps two apart."""
    words = "".join(letter if letter.isalnum() else "-" for letter in place.removesuffix(".zip"))
    return f"{words[:60].strip('-')}-{sha256(place.encode()).hexdigest()[:8]}.html"


def files_of(place: str, *, page: bool, cached: bool) -> Iterator[str]:
    """Yield the files of a record below the site: its page, and its facts if it is a bundle."""
    name = page_name(place)
    if page:
        yield f"pages/{name}"
    if cached:
        yield f"{CACHE}/{name.removesuffix('.html')}.json"


def _read(path: Path, top: Path, out: Path, render: Render, code: str) -> Entry:
    page = out / "pages" / page_name(path.relative_to(top).as_posix())
    known = out / CACHE / f"{page.stem}.json" if path.is_file() else None
    key = f"{file_sha256(path)} {code}" if known else ""
    if known is not None and page.is_file():
        with suppress(OSError, ValidationError):  # there is none, or it was written by other code
            if (found := Known.model_validate_json(known.read_bytes())).key == key:
                return found.entry
    entry, text = read_entry(path, top, render)
    if text:
        write_text(page, text)
    if known is not None:
        write_text(known, Known(key=key, entry=entry).model_dump_json())
    return entry
