"""Read all records of a folder side by side in several processes, and write their pages."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from hashlib import sha256
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

from pydantic import ValidationError

from repro.board.entry import Entry
from repro.board.read import Render, read_entry
from repro.core import orphans
from repro.core.files import write_text
from repro.core.frozen import Frozen
from repro.core.machine import count_cores
from repro.record.folder.index import file_sha256

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

