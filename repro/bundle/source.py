"""The run folder behind a path, which may name a folder or a bundle."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from repro.bundle import archive
from repro.core.errors import OutputError, ReproError


@contextmanager
def open_record(path: Path, name: str = "") -> Iterator[Path]:
    """Yield `path` if it is a folder; unpack a bundle into a temporary folder for as long as the context lasts.

    The temporary folder is named like the bundle, because reports name runs by their folders. A message of a failure
    inside the context names the bundle instead of it.

    Args:
        name: of the temporary folder instead.

    Raises:
        OutputError: the path does not exist, or is no bundle.
    """
    if path.is_dir():
        yield path
        return
    if not path.exists():
        raise OutputError(f"{path}: no such run folder or bundle")
    with archive.unpacked(path, name) as folder:
        try:
            yield folder
        except ReproError as error:
            error.args = tuple(item.replace(str(folder), str(path)) if isinstance(item, str) else item
                               for item in error.args)
            raise


@contextmanager
def open_records(paths: Sequence[Path]) -> Iterator[list[Path]]:
    """Open each path as `open_record` does.

    A bundle that is named twice is one folder; the folders of bundles of one name are numbered.

    Raises:
        OutputError: as `open_record`.
    """
    opened: dict[Path, Path] = {}
    with ExitStack() as stack:
        for path in paths:
            if path.resolve() not in opened:
                taken = {other.name for other in opened.values()}
                stem = archive.folder_name(path)
                names = (stem, *(f"{stem} ({number})" for number in range(2, len(paths) + 1)))
                opened[path.resolve()] = stack.enter_context(
                    open_record(path, next(name for name in names if name not in taken)))
        yield [path if path.is_dir() else opened[path.resolve()] for path in paths]


def is_bundle(path: Path) -> bool:
    """Return whether a path names a bundle, damaged or not, rather than a folder or another file."""
    return path.is_file() and (path.suffix == ".zip" or zipfile.is_zipfile(path))
