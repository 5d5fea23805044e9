"""The index of a run: sha256 of every file, in the format of `sha256sum -c`, so that later changes are detected."""

from __future__ import annotations

import hashlib
import io
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from repro.core import door
from repro.core.errors import OutputError
from repro.core.files import read_bounded, write_text
from repro.record.folder.store import SOLO, TUNING, RunFolder

NAME, MERGED = "sha256sums.txt", "sources.json"
TOP = ("plan.json", "suite.yaml", "environment.json", "launchers.json", "nodes.jsonl", "lanes.jsonl", "ledger.jsonl",
       "incidents.jsonl", "looks.jsonl", "parity.json", "declared.json", "tuned.yaml", "registration.json",
       "registration.json.sig", MERGED)
BELOW = ("code", "parity", "trials")
"""Folders whose every file belongs to the record, as the files of the records in TUNING and SOLO do, whose own index
that of the run replaces. Reports, tracking and calibration can be made from it again."""
MAX_FILES = 100_000
MAX_FILE_BYTES = 256 << 20
PIECE = 1 << 20
DIGEST = re.compile("[0-9a-f]{64}")
UNSAFE = re.compile(r"[\x00-\x1f\\]")
"""Characters that no name of a file in a record has."""
UNFINISHED = re.compile(r"\..*\.tmp", re.DOTALL)
"""Files that were being written."""
LEFT_BY_OTHERS = re.compile(r"\.DS_Store|\._.*|Thumbs\.db|desktop\.ini", re.DOTALL)
"""Files that the file managers of macOS and Windows leave in a folder or an archive: no part of a record."""
Alteration = Literal["missing", "modified", "added"]


@dataclass(frozen=True, slots=True)
class Member:
    """A file of the record; `name` relative to the run, `/` between parts."""

    name: str
    place: str
    """Its path; thousands of `Path` would take longer than their files."""
    refusal: str = ""
    """Reason not to read the file; "" if it may be read."""

    @property
    def path(self) -> Path:
        return Path(self.place)


def members(root: Path) -> Iterator[Member]:
    """Yield every file of the record below `root`, sorted by name; links and special files carry a refusal.

    Raises:
        OutputError: there are more than MAX_FILES.
    """
    found = _members(root, "")
    for name in (TUNING, SOLO):
        if (root / name).is_dir():
            found += _members(root / name, f"{name}/")
    if len(found) > MAX_FILES:
        raise OutputError(f"{root}: holds more than {MAX_FILES:,} files, the limit of a run")
    yield from sorted(found, key=lambda item: item.name.encode("utf-8", "surrogateescape"))


def _members(root: Path, prefix: str) -> list[Member]:
    """Return the files of one record below `root`; `prefix` comes before their names."""
    base = os.fspath(root)
    found = [_member(f"{prefix}{name}", f"{base}/{name}") for name in TOP if os.path.lexists(f"{base}/{name}")]
    waiting = [(f"{prefix}{name}", f"{base}/{name}") for name in BELOW if (root / name).is_dir()]
    while waiting:
        name, path = waiting.pop()
        for entry in os.scandir(path):
            inner = f"{name}/{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                # A failed trial may resume from its checkpoints; they are not part of the record.
                if entry.name != "checkpoints" or not name.startswith(f"{prefix}trials/"):
                    waiting.append((inner, entry.path))
            elif not (UNFINISHED.fullmatch(entry.name) or LEFT_BY_OTHERS.fullmatch(entry.name)):
                found.append(_member(inner, entry.path))
        if len(found) + len(waiting) > MAX_FILES:
            raise OutputError(f"{root}: holds more than {MAX_FILES:,} files, the limit of a run")
    return found


def present_members(root: Path, sums: Mapping[str, str]) -> dict[str, Member]:
    """Return the files of the record below `root`, and those at its top that its index lists, by name.

    An unpacked bundle has more files at its top than a run.

    Raises:
        OutputError: as `members`.
    """
    listed = {name: _member(name, os.fspath(root / name)) for name in sums
              if "/" not in name and name not in ("", ".", "..") and os.path.lexists(root / name)}
    return listed | {item.name: item for item in members(root)}


def _member(name: str, path: str) -> Member:
    try:
        name.encode()
    except UnicodeEncodeError:
        return Member(name.encode("utf-8", "backslashreplace").decode(), path, "its name is not UTF-8 text")
    if UNSAFE.search(name):
        return Member(ascii(name)[1:-1], path, "its name holds control characters or backslashes")
    state = os.lstat(path)
    if stat.S_ISLNK(state.st_mode):
        return Member(name, path, door.LINK)
    if not stat.S_ISREG(state.st_mode):
        return Member(name, path, door.NO_FILE)
    if state.st_size > MAX_FILE_BYTES:
        return Member(name, path, f"is larger than {MAX_FILE_BYTES >> 20} MiB")
    return Member(name, path)


def file_sha256(path: str | Path) -> str:
    """Return the sha256 of a file's content.

    Raises:
        OutputError: the file cannot be read.
    """
    digest = hashlib.sha256()
    try:
        handle = door.open_handle(path, os.O_RDONLY)
        try:
            while piece := os.read(handle, PIECE):
                digest.update(piece)
        finally:
            os.close(handle)
    except OSError as error:
        raise OutputError(f"{path}: cannot be read: {error.strerror}") from error
    return digest.hexdigest()


def alterations(present: Mapping[str, Member], sums: Mapping[str, str]) -> Iterator[tuple[str, Alteration]]:
    """Yield the name of every file on which the index and the files of a record disagree, and how.

    A file that may not be read counts as present.

    Raises:
        OutputError: a file cannot be read.
    """
    for name, digest in sums.items():
        if (member := present.get(name)) is None:
            if not LEFT_BY_OTHERS.fullmatch(name.rpartition("/")[2]):
                yield name, "missing"
        elif not member.refusal and file_sha256(member.place) != digest:
            yield name, "modified"
    yield from ((name, "added") for name in present.keys() - sums.keys() - {NAME})


def altered(root: Path) -> list[str]:
    """Return the files on which a record and its index disagree, sorted, and those that may not be read; the index
    itself where there is none.

    Raises:
        OutputError: a file cannot be read, or the index is damaged or a link.
    """
    if (root / NAME).is_symlink():
        raise OutputError(f"{root / NAME}: {door.LINK}")
    if not (root / NAME).is_file():
        return [NAME]
    sums = read_sums(root / NAME)
    present = present_members(root, sums)
    refused = {name for name, member in present.items() if member.refusal}
    return sorted(refused | {name for name, _ in alterations(present, sums)})


def text_of(sums: Mapping[str, str]) -> str:
    """Return the text of the index: one line `<hash>  <name>` per file, sorted by name."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items()))


def identity(sums: Mapping[str, str]) -> str:
    """Return one hash for the whole record: sha256 of the text of the index."""
    return hashlib.sha256(text_of(sums).encode()).hexdigest()


def read_sums(path: Path) -> dict[str, str]:
    """Read an index as file name -> hash.

    Raises:
        OutputError: the file cannot be read or is no index; the message names the line.
    """
    try:
        text = read_bounded(path, MAX_FILES * 512).decode()
    except UnicodeDecodeError as error:
        raise OutputError(f"{path}: not UTF-8 text") from error
    found: dict[str, str] = {}
    for number, row in enumerate(io.StringIO(text, newline="\n"), 1):  # a list of all lines may not fit into memory
        line = row.removesuffix("\n")
        digest, gap, name = line.partition("  ")
        if not gap or not DIGEST.fullmatch(digest) or not name or name in found:
            raise OutputError(f"{path}:{number}: not a line of `sha256sum` (64 hex digits, two spaces, a name)")
        found[name] = digest
    if text and not text.endswith("\n"):
        raise OutputError(f"{path}: its last line has no end, so the file was cut")
    return found


def seal(folder: RunFolder) -> None:
    """Write the index of the run's files; the last action of a run.

    Raises:
        OutputError: the index cannot be written.
    """
    sums = {item.name: file_sha256(item.place) for item in members(folder.root) if not item.refusal}
    write_text(folder.root / NAME, text_of(sums))


def seal_again(folder: RunFolder) -> None:
    """Seal a folder that was unsealed; leave one that still has its index.

    Raises:
        OutputError: as `seal`.
    """
    if not os.path.lexists(folder.root / NAME):
        seal(folder)


def unseal(folder: RunFolder) -> None:
    """Remove the index of a run whose files are about to change.

    Raises:
        OutputError: it cannot be removed.
    """
    try:
        (folder.root / NAME).unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(f"{folder.root / NAME}: cannot be removed: {error.strerror}") from error
