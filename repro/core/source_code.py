"""Python source of a class that a suite takes from a file: the file, the modules beside it that it imports, one hash.

A record keeps the source in its folder `code/`, and whatever runs is what is kept: a source is read once, hashed, and
imported from the bytes that were hashed. Importing executes the source, so a process imports only what was allowed in
it (`allow`): the files that the user's own suite names, or those of a record whose hash the user has given. Reading a
record allows nothing.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import importlib
import importlib.abc
import json
import re
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any

from repro.core import door
from repro.core.errors import OutputError, UsageError, nearest

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


PREFIX = "_repro_code_"
_allowed: dict[str, SourceCode] = {}
"""sha256 -> source that may be imported in this process."""


class NotAllowed(UsageError):
    """The class is of a source that was not allowed in this process."""


def allow(source: SourceCode) -> None:
    """Let classes of a source be imported in this process from now on."""
    _allowed.setdefault(source.sha256, source)
    if not any(isinstance(item, _Finder) for item in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def allowed(sha256: str) -> SourceCode | None:
    """Return the source with this hash if its classes may be imported in this process."""
    return _allowed.get(sha256)


def import_class(kind: str, sha256: str) -> Any:
    """Import the class `net.py:Net` of an allowed source; its first import executes the source.

    Raises:
        NotAllowed: the source was not allowed in this process.
        UsageError: there is no such class, or the import failed; with the line in the source.
    """
    source, found = _allowed.get(sha256), KIND.fullmatch(kind)
    if source is None or found is None or found[1] not in source.files:
        raise NotAllowed(f"{kind!r} is a class from a file, whose source may not run here")
    try:
        module = importlib.import_module(f"{_package(source)}.{_module(found[1])}")
    except (Exception, SystemExit) as error:  # the code is the user's: whatever it raises, the user learns where
        raise UsageError(f"{_place(source, found[1], error)}: {type(error).__name__}: {error}") from error
    names = [name for name, item in vars(module).items() if isinstance(item, type)]
    if found[2] not in names:
        own = [name for name in names if vars(module)[name].__module__.startswith(PREFIX)]
        raise UsageError(f"{source.root / found[1]} has no class {found[2]!r}{nearest(found[2], own)}")
    return vars(module)[found[2]]


def _package(source: SourceCode) -> str:
    return f"{PREFIX}{source.sha256[:32]}"


def _module(name: str) -> str:
    """Return the last part of the name of a file's module: dots in it would be read as packages."""
    return PurePosixPath(name).stem.replace(".", "_")


def _place(source: SourceCode, main: str, error: BaseException) -> str:
    """Return file and line of the last frame in the source; the file of the class if the error has none."""
    own = {str((source.root / name).absolute()): source.root / name for name in source.files}
    lines = [f"{own[frame.filename]}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)
             if frame.filename in own]
    return lines[-1] if lines else str(source.root / main)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of allowed sources, each source below a package of its own."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
                  ) -> ModuleSpec | None:
        package, _, rest = fullname.partition(".")
        if not package.startswith(PREFIX):
            return None
        source = next((item for item in _allowed.values() if _package(item) == package), None)
        name = _file_of(source, rest) if source is not None else None
        if source is None or name is None:  # no other finder may take a file from the folder instead
            raise ModuleNotFoundError(f"No module named {rest!r}", name=fullname)
        is_package = not name or name.endswith("/__init__.py")
        found = spec_from_loader(fullname, _Loader(source, name), is_package=is_package)
        if found is not None and is_package:
            found.submodule_search_locations = []
        return found


def _file_of(source: SourceCode, module: str) -> str | None:
    """Return the file of a module; "" for a package without one, None if the source has no such module."""
    place = module.replace(".", "/")
    if main := next((name for name in source.files if "/" not in name and _module(name) == module), None):
        return main
    if name := next((name for name in (f"{place}/__init__.py", f"{place}.py") if name in source.files), None):
        return name
    return "" if not module or any(name.startswith(f"{place}/") for name in source.files) else None


class _Loader(importlib.abc.SourceLoader):
    """Gives one module of a source from memory; no bytecode is written beside the user's files."""

    def __init__(self, source: SourceCode, name: str) -> None:
        self._source, self._name = source, name

    def get_filename(self, fullname: str) -> str:
        return str((self._source.root / self._name).absolute()) if self._name else f"<{fullname}>"

    def get_data(self, path: Any) -> bytes:
        return self._source.files[self._name] if self._name else b""

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module; its absolute imports find the modules beside it first, now and in its functions.

        They are found in the source, not on `sys.path`: modules of one name beside two classes do not clash.
        """
        package = _package(self._source)
        own = {PurePosixPath(name).parts[0].removesuffix(".py") for name in self._source.files}
        own -= sys.stdlib_module_names

        def import_(
            name: str, globals: Mapping[str, object] | None = None,  # noqa: A002  # the names of the built-in
            locals: Mapping[str, object] | None = None, fromlist: Sequence[str] | None = (),  # noqa: A002
            level: int = 0,
        ) -> ModuleType:
            if level or name.partition(".")[0] not in own:
                return builtins.__import__(name, globals, locals, fromlist or (), level)
            found = importlib.import_module(f"{package}.{name}")
            if not fromlist:
                return sys.modules[f"{package}.{name.partition('.')[0]}"]
            for item in fromlist:
                if not hasattr(found, item) and hasattr(found, "__path__"):
                    _import_submodule(f"{found.__name__}.{item}")
            return found

        vars(module)["__builtins__"] = {**vars(builtins), "__import__": import_}
        super().exec_module(module)


def _import_submodule(name: str) -> None:
    """Import a module that `from package import module` may mean; if there is none, the statement itself fails."""
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
