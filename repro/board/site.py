"""The folder of a site: a list of the files that builds wrote, so that no other file is overwritten or deleted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from repro.core.errors import OutputError, UsageError
from repro.core.files import read_model, write_model
from repro.core.frozen import Frozen

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
