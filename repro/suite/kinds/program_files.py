"""The files that make up programs of a suite: which they are, and their hashes."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from repro.core.git import GitFile, ask_git, git_blobs, git_files
from repro.core.source_code import MAX_FILE_BYTES, MAX_FILES, SourceCode
from repro.suite.field_problem import FieldProblem

LEFT_OUT = ("__pycache__", "node_modules", "venv", "runs", "mlruns", "wandb")
"""Folders that no pattern reaches, besides those whose names begin with a dot and those of runs."""
RUN_FILES = ("plan.json", "declared.json", "ledger.jsonl")
"""Files of which a run folder has one; it holds a copy of the program, so no pattern reaches it either."""


def key_of(folder: str, patterns: Sequence[str], commit: str) -> str:
    """Return the name under which a suite keeps the hash of a program's files."""
    return json.dumps([folder, list(patterns), commit])


@dataclass(slots=True)
class ProgramFiles:
    """Hashes of the programs of one suite: those that a record states, else of the files on disk."""

    base: Path | None
    """Folder of the suite's file; None: a record is read, and no file is."""
    stated: Mapping[str, str] = field(default_factory=dict)
    found: dict[str, str] = field(default_factory=dict)

    def sha256(self, folder: str, patterns: Sequence[str], commit: str) -> str:
        """Return the hash of names and contents of a program's files.

        Raises:
            FieldProblem: there are none, too many, or their folder is no checkout with that commit.
        """
        key = key_of(folder, patterns, commit)
        if key not in self.found:
            if self.base is None:
                if key not in self.stated:
                    raise FieldProblem("the record does not state the hash of these files", ("engine", "files"))
                self.found[key] = self.stated[key]
            else:
                self.found[key] = read(self.base / folder, patterns, commit).sha256
                if self.stated.get(key, self.found[key]) != self.found[key]:
                    raise FieldProblem(f"its files have the hash {self.found[key]}, and the suite's `programs` states "
                                       f"{self.stated[key]}", ("engine", "files"))
        return self.found[key]


def read(folder: Path, patterns: Sequence[str], commit: str) -> SourceCode:
    """Return the files of a program, by their paths below `folder`.

    Raises:
        FieldProblem: there are none, too many, one cannot be read, or `folder` is no checkout with that commit.
    """
    if not folder.is_dir():
        raise FieldProblem(f"no such folder: {folder.name}", ("engine", "folder"))
    if commit:
        with tempfile.TemporaryDirectory(prefix="repro-commit-") as scratch:
            export(folder, commit, Path(scratch))
            return read(Path(scratch), patterns, "")
    found: dict[str, bytes] = {}
    for name, content in _of_folder(folder, patterns):
        found[name] = content
        if len(found) > MAX_FILES or len(content) > MAX_FILE_BYTES:
            raise FieldProblem(f"{name}: more than {MAX_FILES} files, or one of more than {MAX_FILE_BYTES >> 20} MiB: "
                               "name the program's source and not its data", ("engine", "files"))
    if patterns and not found:
        raise FieldProblem(f"no file of {folder.name or 'the folder'} matches {', '.join(patterns)}; a command that is "
                           "installed has files: []", ("engine", "files"))
    return SourceCode(found, folder)


def export(folder: Path, commit: str, to: Path) -> None:
    """Write the folder's part of a commit into the empty folder `to`; the checkout itself stays as it is.

    Raises:
        FieldProblem: `folder` is in no checkout, or there is no such commit.
    """
    top, prefix = ask_git(folder, "rev-parse", "--show-toplevel"), ask_git(folder, "rev-parse", "--show-prefix")
    if top is None or prefix is None:
        raise FieldProblem("its folder is not a git checkout", ("engine", "commit"))
    wanted = commit_of(folder, commit)
    if wanted is None:
        raise FieldProblem(f"no commit, tag or branch {commit!r} in its repository", ("engine", "commit"))
    files = git_files(Path(top), f"{wanted}:{prefix.rstrip('/')}")
    stored = {name: file for name, file in (files or {}).items() if file.mode != SUBMODULE}
    blobs = git_blobs(Path(top), [file.blob for file in stored.values()]) if files is not None else None
    if blobs is None:
        raise FieldProblem(f"git cannot restore this folder from commit {commit!r}", ("engine", "commit"))
    for name, file in stored.items():
        _write(to, name, file, blobs[file.blob])


SUBMODULE, LINK, EXECUTABLE = "160000", "120000", "100755"


def _write(to: Path, name: str, file: GitFile, content: bytes) -> None:
    """Write one file of a commit, unfiltered."""
    place = to / name
    target = place.parent / os.fsdecode(content) if file.mode == LINK else place
    if not Path(os.path.normpath(target)).is_relative_to(to) or not place.parent.resolve().is_relative_to(to.resolve()):
        raise FieldProblem(f"{name}: leads out of the folder", ("engine", "commit"))
    place.parent.mkdir(parents=True, exist_ok=True)
    if file.mode == LINK:
        place.symlink_to(os.fsdecode(content))
        return
    place.write_bytes(content)
    if file.mode == EXECUTABLE:
        place.chmod(place.stat().st_mode | 0o111)


def commit_of(folder: Path, name: str) -> str | None:
    """Return the hash of the commit that a name stands for in the folder's repository; None: there is none."""
    return ask_git(folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")


def _of_folder(folder: Path, patterns: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in LEFT_OUT
                            and not any(Path(place, name, file).is_file() for file in RUN_FILES)
                            and not Path(place, name, "pyvenv.cfg").exists())
        for name in sorted(names):
            path = Path(place, name)
            below = path.relative_to(folder)
            if any(_matches(below.parts, PurePosixPath(pattern).parts) for pattern in patterns) and path.is_file():
                try:
                    with path.open("rb") as stream:
                        yield below.as_posix(), stream.read(MAX_FILE_BYTES + 1)
                except OSError as error:
                    raise FieldProblem(f"{below.as_posix()}: {error.strerror}", ("engine", "files")) from error


def _matches(name: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    """Return whether the parts of a path match: `**/` stands for any folders or none, `*` for a part of one name."""
    if not pattern:
        return not name
    if pattern[0] == "**":
        return any(_matches(name[skip:], pattern[1:]) for skip in range(len(name) + 1))
    return bool(name) and fnmatchcase(name[0], pattern[0]) and _matches(name[1:], pattern[1:])
