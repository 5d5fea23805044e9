"""Files behind a plug-in of another package: those its installation lists, or those of the modules that are loaded."""

from __future__ import annotations

import ast
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import Distribution, EntryPoint, packages_distributions
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

CODE = frozenset((".py", ".pyi", ".pyx", ".pxd", ".so", ".pyd", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp",
                  ".json", ".toml", ".yaml", ".yml"))
"""Endings of files whose content counts at any size."""
LARGEST = 16 * 2**20
"""Bytes up to which the content of any other file counts; of a larger one (weights, data) name and size count."""
RUN, ENVIRONMENT = "ledger.jsonl", "pyvenv.cfg"
"""Files that mark a folder as a run of this harness or as a virtual environment; a package's folder may hold both."""
GENERATED = ("__pycache__", "mlruns", "mlartifacts")
"""Folders that running a plug-in writes."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of a plug-in's package."""

    name: str
    """Dotted name of the package as a path, and the path below it: the same wherever the package lies."""
    path: Path

    def digest(self) -> str:
        """Return the sha256 of the content; the size of a file above `LARGEST` that is no code.

        Raises:
            OSError: the file cannot be read.
        """
        size = self.path.stat().st_size
        if size > LARGEST and self.path.suffix not in CODE:
            return f"{size} bytes"
        return hashlib.sha256(self.path.read_bytes()).hexdigest()


def source_files(point: EntryPoint) -> list[SourceFile]:
    """Return the files of a plug-in's package, sorted by name; the file of the plug-in's own module is among them.

    If the installation lists that file, its list counts. Otherwise (an editable installation, one without a list, a
    checkout on the path) all files of the packages around the module count, in all their folders, and those of the
    modules next to them that they import. A namespace package counts with all that is installed in it.
    """
    listed = list(_listed(point.dist)) if point.dist else []
    found = {item.path.resolve(): item for item in listed}
    if own_file(point) not in found:
        found |= {item.path.resolve(): item for item in _loaded(point)}
    return sorted(found.values(), key=lambda item: (item.name, item.path))


def own_file(point: EntryPoint) -> Path | None:
    """Return the file of the module that an entry point names, links followed; None if it has none."""
    spec = _find(point.module)
    return Path(spec.origin).resolve() if spec is not None and spec.has_location and spec.origin else None


def _listed(package: Distribution) -> Iterator[SourceFile]:
    """Yield what the installation lists, without what the installer wrote: metadata, commands, paths, import hooks."""
    if package.read_text("RECORD") is None:
        return  # a list of another kind names what was in the checkout when the package was last built
    for item in package.files or ():
        first, path = item.parts[0], Path(str(item.locate()))
        alone = len(item.parts) == 1
        installer = (first.endswith(".dist-info") or (alone and item.suffix == ".pth")
                     or (alone and first.startswith("_") and "editable" in first)
                     or (first == ".." and item.parent.name in ("bin", "Scripts")))
        if not installer and _counts(item) and path.is_file():
            yield SourceFile(item.as_posix(), path)


def _counts(path: PurePosixPath | Path) -> bool:
    return not path.name.startswith((".", "mlflow.db")) and path.suffix != ".pyc" and not path.name.endswith("~")


def _find(module: str) -> ModuleSpec | None:
    try:
        return find_spec(module)
    except (ImportError, ValueError):
        return None


def _loaded(point: EntryPoint) -> Iterator[SourceFile]:
    """Yield the files of the packages around the entry point's module, and of the modules next to them, in turn."""
    parts = point.module.split(".")
    around = [".".join(parts[:end + 1]) for end in range(len(parts))]
    waiting = {name: spec for name in around if (spec := _find(name)) is not None}
    roots = [str(Path(place).parent) for place in _places(waiting[parts[0]])] if parts[0] in waiting else []
    owners, package, seen = packages_distributions(), point.dist.name if point.dist else "", set(waiting)
    while waiting:
        name, spec = waiting.popitem()
        for item in _files(name, spec):
            yield item
            for module in sorted(_imported(item.path) - seen):
                seen.add(module)
                # Another package in the same folder: `packages` of the environment has its version.
                other = bool(set(owners.get(module, ())) - {package})
                if not other and (beside := PathFinder.find_spec(module, roots)) is not None:
                    waiting[module] = beside


def _places(spec: ModuleSpec) -> list[str]:
    """Return the folders of a package, or the file of a module; import hooks put names among them that are no path."""
    return [place for place in (spec.submodule_search_locations or [spec.origin or ""]) if Path(place).exists()]


def _files(name: str, spec: ModuleSpec) -> Iterator[SourceFile]:
    parent, place = PurePosixPath(*name.split(".")[:-1]), PurePosixPath(*name.split("."))
    for found in map(Path, _places(spec)):
        if found.is_file():
            yield SourceFile((parent / found.name).as_posix(), found)
        else:
            yield from (SourceFile((place / path.relative_to(found)).as_posix(), path) for path in _below(found))


def _below(folder: Path) -> Iterator[Path]:
    """Yield the files below a package's folder, without those that running or installing it has written."""
    for place, folders, names in os.walk(folder):
        if RUN in names or ENVIRONMENT in names:
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if name not in GENERATED and not name.startswith(".")
                            and not name.endswith((".egg-info", ".dist-info")))
        yield from (path for name in sorted(names) if _counts(path := Path(place, name)) and path.is_file())


def _imported(path: Path) -> set[str]:
    """Return the top-level names that a Python file imports; none if it cannot be parsed."""
    if path.suffix != ".py":
        return set()
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError):
        return set()
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module
              and not node.level}
    return {name.partition(".")[0] for name in names}
