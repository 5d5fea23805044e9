"""Python source of a class that a suite takes from a file: the file, the modules beside it that it imports, one hash.

A record keeps the source in its folder `code/`, and whatever runs is what is kept: a source is read once, hashed, and
imported from the bytes that were hashed (`repro.core.source_import`).
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from repro.core import door
from repro.core.errors import OutputError, UsageError

KIND = re.compile(r"([\w.+-]{1,100}\.py):([^\W\d]\w{0,99})")
"""The name of a class of a file in plans, labels and reports: `net.py:Net`."""
MAX_FILES, MAX_FILE_BYTES, MAX_DEPTH = 1000, 1 << 20, 8
"""Most files of a source, their size, and the folders above a module; a record stores all of it."""
PLACE_DIGITS = 16
"""Digits of the hash that name a source's folder in a record."""


@dataclass(frozen=True, slots=True)
class SourceCode:
    """A file and what it imports from its folder."""

    files: Mapping[str, bytes]
    """Name relative to the folder, `/` between parts -> content."""
    root: Path
    """The folder that they were read from."""

    @property
    def sha256(self) -> str:
        """Hash of names and contents, whose form is that of `repro.record.environment.plugin_code`."""
        digest = hashlib.sha256()
        for name, content in sorted(self.files.items()):
            digest.update(json.dumps([name, hashlib.sha256(content).hexdigest()]).encode())
        return digest.hexdigest()

    @property
    def place(self) -> str:
        """The name of its folder below `code/` of a record."""
        return self.sha256[:PLACE_DIGITS]


def is_file_kind(kind: str) -> bool:
    """Return whether a plug-in's name is that of a class of a file, `net.py:Net`."""
    return KIND.fullmatch(kind) is not None


def read_source(path: Path) -> SourceCode:
    """Read a file of the user and, in turn, the modules beside it that it imports.

    Modules of the standard library and of `repro` are never taken from beside it; of a package beside it every Python
    file counts. Nothing is executed.

    Raises:
        UsageError: a file cannot be read, is no Python source in UTF-8, or cannot be part of a record.
    """
    root, files, waiting = path.parent, {path.name: _content(path)}, [path.name]
    while waiting:
        name = waiting.pop()
        for found in _beside(root, name, _parsed(root / name, files[name])):
            if found not in files:
                _check_place(root / found, found, len(files))
                files[found] = _content(root / found)
                waiting.append(found)
    return SourceCode(files, root)


def stored_source(code: Path, sha256: str, main: str = "") -> SourceCode:
    """Read a source from the folder `code` of a record; nothing is executed.

    The files may be a stranger's: links are refused, sizes bounded, and the hash decides.

    Args:
        main: the file of the class.

    Raises:
        OutputError: it is missing, or its files are not those that the hash names.
    """
    root = code / sha256[:PLACE_DIGITS]
    files: dict[str, bytes] = {}
    for path, reason in door.walk(root) if root.is_dir() else ():
        if reason:
            raise OutputError(f"{path}: {reason}")
        name = path.relative_to(root).as_posix()
        if len(files) >= MAX_FILES or path.lstat().st_size > MAX_FILE_BYTES:
            raise OutputError(f"{root}: holds more than the source of a record can have")
        try:
            files[name] = path.read_bytes()
        except OSError as error:
            raise OutputError(f"{path}: cannot be read: {error.strerror or error}") from error
    found = SourceCode(files, root)
    if main and main not in files:
        raise OutputError(f"{root}: does not hold {main}, the file of the class")
    if found.sha256 != sha256:
        raise OutputError(f"{root}: is not the source of the record: its sha256 is {found.sha256[:16]}, not "
                          f"{sha256[:16]}; nothing of it is run")
    return found


def _plain_files(root: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(root):
        folders.sort()
        yield from (Path(place, name) for name in sorted(names))


def _content(path: Path) -> bytes:
    try:
        if not path.is_file():
            raise UsageError(f"{path}: {'is a folder, not a file' if path.is_dir() else 'there is no such file'}")
        if path.stat().st_size > MAX_FILE_BYTES:
            raise UsageError(f"{path}: larger than {MAX_FILE_BYTES >> 20} MiB, the limit of source in a record")
        content = path.read_bytes()
        content.decode()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError:
        raise UsageError(f"{path}: is not UTF-8 text") from None
    return content


def _check_place(path: Path, name: str, count: int) -> None:
    parts = PurePosixPath(name).parts
    if len(parts) > MAX_DEPTH or not all(re.fullmatch(r"[\w.+-]{1,100}", part) for part in parts):
        raise UsageError(f"{path}: a record cannot store this name or depth; move the module next to the class")
    if count >= MAX_FILES:
        raise UsageError(f"{path.parent}: the class imports more than {MAX_FILES} files beside it; make them a package "
                         "with an entry point (docs/extending.md)")


def _parsed(path: Path, content: bytes) -> ast.Module:
    try:
        return ast.parse(content)
    except SyntaxError as error:
        raise UsageError(f"{path}:{error.lineno or 1}: SyntaxError: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: is no Python source: {error}") from None


def _beside(root: Path, name: str, tree: ast.Module) -> Iterator[str]:
    """Yield the files below `root` that the module of the file `name` imports."""
    package = PurePosixPath(name).parent.parts
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files_of(root, tuple(alias.name.split(".")))
        elif isinstance(node, ast.ImportFrom):
            if node.level > len(package) + 1:
                raise UsageError(f"{root / name}:{node.lineno}: imports `{'.' * node.level}{node.module or ''}`, which "
                                 "lies above the folder of the class; a record stores that folder's modules only")
            start = package[:len(package) + 1 - node.level] if node.level else ()
            parts = (*start, *(node.module.split(".") if node.module else ()))
            for alias in node.names:
                yield from _files_of(root, (*parts, alias.name), bool(node.level))


def _files_of(root: Path, module: tuple[str, ...], relative: bool = False) -> Iterator[str]:
    """Yield the files below `root` that importing a dotted name loads, and the other files of a package on the way."""
    if not relative and (module[0] in sys.stdlib_module_names or module[0] == "repro"):
        return
    for end in range(1, len(module) + 1):
        place = PurePosixPath(*module[:end])
        if (root / place / "__init__.py").is_file():
            inside = (path for path in sorted((root / place).rglob("*.py")) if path.is_file())
            names = (path.relative_to(root) for path in inside)
            yield from (item.as_posix() for item in names if not any(part.startswith(".") for part in item.parts))
            return
        if (root / f"{place}.py").is_file():
            yield f"{place}.py"
            return
        if (extension := next(iter(sorted((root / place.parent).glob(f"{place.name}.*.so"))), None)) is not None:
            raise UsageError(f"{extension}: is compiled, and a record stores source only; make it a package with an "
                             "entry point (docs/extending.md)")
