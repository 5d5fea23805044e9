"""Import of classes from source that was allowed: the bytes that were hashed are the bytes that run.

Importing executes the source, so a process imports only what was allowed in it (`allow`): the files that the user's own
suite names, or those of a record whose hash the user has given. Reading a record allows nothing.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.abc
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import PurePosixPath
from types import ModuleType
from typing import Any

from repro.core.errors import UsageError, nearest
from repro.core.source_code import KIND, SourceCode

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
