"""The manifest of a data set: its files with size and sha256, and facts of the content. Its hash identifies the data.

A prepared data set is a folder of the store (`store`):

- `manifest.json`: name, version, facts, and the sha256 of `files.txt`. It names no path of the machine.
- `files.txt`: a line `SHA256 SIZE PATH` per file, relative to the data folder and sorted by path: 1.3 million files
  fit, and are read in a second.
- `place.json`: the data folder on this machine; `mtimes.npy`: when each file was last changed. Neither is part of the
  identity, so that the same files in another folder are the same data.
- `files/`: files that the preparation converted, if any.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from repro.core.errors import OutputError, TrialError
from repro.core.files import read_model, write_bytes, write_model, write_text
from repro.core.frozen import Frozen
from repro.core.machine import user_folder

Facts = Mapping[str, str | int | float | bool]
"""Content of a data set: number of samples and classes, hash of a tokenizer, ..."""
Progress = Callable[[str, int, int], None]
"""Receives how far a preparation is: the stage, the completed units and all of them; a stage begins with 0."""


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
    """Source of the data, for records."""
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
    return user_folder("XDG_CACHE_HOME", ".cache") / "repro" / "data"


def folder_of(name: str) -> Path:
    """Return the folder of one prepared data set."""
    return store() / name


def manifest_file(name: str) -> Path:
    return folder_of(name) / "manifest.json"


OWN = "files"
"""Folder below that of a data set for its converted files."""
LIST = "files.txt"
PLACE = "place.json"
MTIMES = "mtimes.npy"


class Entry(NamedTuple):
    """One file of a data set."""

    path: str
    """Relative to the data folder, with `/`."""
    size: int
    """Bytes."""
    sha256: str


class Manifest(Frozen):
    """Identity of a data set, the same on every machine."""

    format: Literal[1] = 1
    name: str
    version: str
    licence: str
    source: str
    facts: dict[str, str | bool | int | float]
    files: int = Field(ge=1)
    bytes: int = Field(ge=0)
    files_sha256: str = Field(pattern="^[0-9a-f]{64}$")
    """Of `files.txt`, which lists them."""

    @property
    def sha256(self) -> str:
        """Identity of the data: the sha256 of this manifest as canonical JSON."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


class Place(Frozen):
    """Folder of the files on this machine."""

    folder: str
    """Absolute; or `files`, the folder of converted ones."""


@dataclass(frozen=True)
class Prepared:
    """A data set that is prepared on this machine. Can be pickled; the list of files is read when it is needed."""

    home: Path
    """Its folder in the store."""
    manifest: Manifest
    folder: Path
    """The data folder, to which paths of entries are relative."""

    @property
    def name(self) -> str:
        return self.manifest.name

    @property
    def sha256(self) -> str:
        return self.manifest.sha256

    @cached_property
    def entries(self) -> list[Entry]:
        """All files, sorted by path.

        Raises:
            TrialError: the list is not the one that the manifest was made with.
        """
        try:
            raw = (self.home / LIST).read_bytes()
        except OSError as error:
            raise TrialError(f"{self.home / LIST}: cannot be read: {error.strerror}; {self.again}") from error
        if hashlib.sha256(raw).hexdigest() != self.manifest.files_sha256:
            raise TrialError(f"{self.home / LIST}: is not the list that the manifest was made with; {self.again}")
        parts = (line.split(" ", 2) for line in raw.decode().splitlines())
        return [Entry(path, int(size), sha256) for sha256, size, path in parts]

    def drop_entries(self) -> None:
        """Free the memory of `entries`; they are read again when they are needed."""
        self.__dict__.pop("entries", None)

    @cached_property
    def mtimes(self) -> np.ndarray:
        """Time of each file's last change as of its last hash, nanoseconds [n] int64; -1: unknown."""
        try:
            found: np.ndarray = np.load(self.home / MTIMES, allow_pickle=False)
        except (OSError, ValueError, EOFError):
            found = np.empty(0, np.int64)
        return found if found.shape == (len(self.entries),) else np.full(len(self.entries), -1, np.int64)

    @property
    def again(self) -> str:
        """The command that makes the manifest again, as the end of a sentence."""
        return f"make the manifest again: repro data prepare {self.manifest.name} --from FOLDER"

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("home", "manifest", "folder")}


def write(home: Path, manifest: Manifest, lines: bytes, mtimes: np.ndarray, folder: Path) -> Prepared:
    """Write a prepared data set; the manifest comes last, so that an interrupted preparation leaves none."""
    write_bytes(home / LIST, lines)
    write_mtimes(home, mtimes)
    write_model(home / PLACE, Place(folder=OWN if folder == home / OWN else str(folder.absolute())))
    write_text(home / "manifest.json", json.dumps(manifest.model_dump(mode="json"), indent=1, sort_keys=True) + "\n")
    return Prepared(home, manifest, folder)


def write_mtimes(home: Path, mtimes: np.ndarray) -> None:
    """Write when each file was last changed."""
    stream = io.BytesIO()
    np.save(stream, mtimes.astype(np.int64))
    write_bytes(home / MTIMES, stream.getvalue())


def find(name: str) -> Prepared | None:
    """Return a data set prepared on this machine; None: there is no manifest.

    Raises:
        TrialError: the manifest is damaged or of another version.
    """
    home, path = folder_of(name), manifest_file(name)
    if not path.exists():
        return None
    try:
        manifest, place = read_model(path, Manifest), read_model(home / PLACE, Place)
    except OutputError as error:
        raise TrialError(f"{error}; make the manifest again: repro data prepare {name} --from FOLDER") from error
    return Prepared(home, manifest, home / OWN if place.folder == OWN else Path(place.folder))
