"""The run folder behind a path, which may name a folder or a bundle."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from repro.bundle import archive
from repro.core.errors import OutputError


@contextmanager
def open_record(path: Path) -> Iterator[Path]:
    """Yield `path` if it is a folder; unpack a bundle into a temporary folder for as long as the context lasts.

    Raises:
        OutputError: the path does not exist, or is no bundle.
    """
    if path.is_dir():
        yield path
        return
    if not path.exists():
        raise OutputError(f"{path}: no such run folder or bundle")
    with archive.unpacked(path) as folder:
        yield folder
