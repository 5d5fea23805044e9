"""The run folder behind a path, which may name a folder or a bundle."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from repro.bundle import archive
from repro.core import door
from repro.core.errors import OutputError, ReproError


@contextmanager
def open_record(path: Path, name: str = "") -> Iterator[Path]:
    """Yield `path` if it is a folder that nobody else can change; copy another folder, or unpack a bundle, into a
    private temporary folder for as long as the context lasts.

    The temporary folder is named like `path`, because reports name runs by their folders. A message of a failure
    inside the context names `path` instead of it.

    Args:
        name: of the temporary folder instead.

    Raises:
        OutputError: the path does not exist, is no bundle, or cannot be copied or unpacked.
    """
    if not path.exists():
        raise OutputError(f"{path}: no such run folder or bundle")
    if not is_foreign(path):
        yield path
        return
    enter = door.copy_private if path.is_dir() else archive.unpack
    with tempfile.TemporaryDirectory(prefix="repro-bundle-") as place:
        folder = Path(place) / (name or folder_name(path))
        enter(path, folder)
        try:
            yield folder
        except ReproError as error:
            error.args = tuple(item.replace(str(folder), str(path)) if isinstance(item, str) else item
                               for item in error.args)
            raise


@contextmanager
def open_records(paths: Sequence[Path]) -> Iterator[list[Path]]:
    """Open each path as `open_record` does.

    A record that is named twice is one folder; temporary folders of one name are numbered.

    Raises:
        OutputError: as `open_record`.
    """
    opened: dict[Path, Path] = {}
    with ExitStack() as stack:
        for path in paths:
            if path.resolve() not in opened:
                taken = {other.name for other in opened.values()}
                stem = folder_name(path)
                names = (stem, *(f"{stem} ({number})" for number in range(2, len(paths) + 1)))
                opened[path.resolve()] = stack.enter_context(
                    open_record(path, next(name for name in names if name not in taken)))
        yield [path if opened[path.resolve()].samefile(path) else opened[path.resolve()] for path in paths]


def folder_name(path: Path) -> str:
    """Return the name of the folder that a record is copied or unpacked into."""
    return (path.resolve().name if path.is_dir() else path.stem.strip(".")) or "bundle"


def is_foreign(path: Path) -> bool:
    """Return whether a record is read from a private copy and never changed: a bundle, or a folder of others."""
    return not path.is_dir() or door.is_shared(path)


def is_bundle(path: Path) -> bool:
    """Return whether a path names a bundle, damaged or not, rather than a folder or another file."""
    return path.is_file() and (path.suffix == ".zip" or zipfile.is_zipfile(path))
