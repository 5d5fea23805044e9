"""Form of a data set on disk: the class that a workload with files gives to `repro data`."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Protocol

Fact = str | int | float | bool
Facts = Mapping[str, Fact]
"""Content of a data set: number of samples and classes, hash of a tokenizer, ..."""


class Progress(Protocol):
    """Receives how far a preparation is."""

    def __call__(self, what: str, done: int, total: int) -> None:
        """`done` of `total` units of the stage `what` are complete; a stage begins with `done` 0."""


class DataForm(ABC):
    """One data set: which files it has in which form, and how its content is checked.

    Problems with a user's files are `UsageError`s that name the file and say what would be right.
    """

    name: ClassVar[str]
    """As in `repro data prepare NAME`."""
    title: ClassVar[str]
    wanted: ClassVar[str]
    """The files that a user must have, and their form, in one phrase."""
    twin: ClassVar[str]
    """The synthetic workload of the same shapes, which needs no files."""
    target: ClassVar[str]
    """The known target and its source, for `repro data list`."""
    licence: ClassVar[str]
    source: ClassVar[str]
    """Return the source of the data, for records."""
    form_version: ClassVar[str] = "1"
    """Raise it if `source_folder` would write other files from the same input."""

    def source_folder(self, given: Path, own: Path, progress: Progress) -> Path:
        """Return the folder with the files that a training reads; by default the given one, which is never written.

        Args:
            given: the folder (or file) that the user names.
            own: an empty folder for files that are unpacked, converted or tokenised; return it if it is used.

        Raises:
            UsageError: the files are absent or have another form.
        """
        return given

    @abstractmethod
    def files(self, folder: Path) -> Sequence[str]:
        """Return the files of the data set relative to `folder`, with `/`, sorted; others there are ignored.

        Raises:
            UsageError: files are absent or not as wanted.
        """

    def examine(self, folder: Path, file: str) -> None:
        """Check one file by itself; called once per file, in several threads.

        Raises:
            UsageError: it cannot be read as what it should be.
        """
        return

    @abstractmethod
    def facts(self, folder: Path, files: Sequence[str]) -> Facts:
        """Return the facts of the content after all files were examined; those that the workload's `data` has at least.

        Raises:
            UsageError: the files do not fit together.
        """

    def version(self, facts: Facts) -> str:
        """Return the version of the data set for records."""
        return self.form_version

    def absent(self) -> str:
        """Return one line for a user without prepared data: what is missing, where, how to make it, the twin."""
        return (f"the data of {self.name} are not prepared: no {manifest_file(self.name)}; get {self.wanted}, "
                f"then: repro data prepare {self.name} --from FOLDER (nothing is downloaded); or without files, on "
                f"synthetic data of the same shapes: -o workload={self.twin}")


VARIABLE = "REPRO_DATA"


def store() -> Path:
    """Return the folder of all prepared data sets: `REPRO_DATA`, else `repro/data` in the user's cache (XDG)."""
    if given := os.environ.get(VARIABLE):
        return Path(given).expanduser().absolute()
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "repro" / "data"


def folder_of(name: str) -> Path:
    """Return the folder of one prepared data set."""
    return store() / name


def manifest_file(name: str) -> Path:
    return folder_of(name) / "manifest.json"
