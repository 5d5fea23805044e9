"""Identity of the plug-ins of other packages in a plan: version, hash of the source files, commit of their checkout."""

from __future__ import annotations

import ast
import hashlib
import json
import subprocess
from collections.abc import Iterable, Iterator
from importlib.machinery import PathFinder
from importlib.metadata import EntryPoint, packages_distributions
from importlib.util import find_spec
from pathlib import Path

from repro.core import registry
from repro.core.frozen import Frozen
from repro.suite.plan import Plan

SOURCES = frozenset((".py", ".pyi", ".pyx", ".pxd", ".so", ".pyd", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp",
                     ".json", ".toml", ".yaml", ".yml"))
"""Endings of files that decide what a plug-in does; weights and data of a package are no code."""


class PluginCode(Frozen):
    """The code behind one plug-in that is not of this package."""

    plugin: str
    """Seam and name: `workload byte-lm`."""
    distribution: str
    """Name of its package; "" if its entry point belongs to none."""
    version: str
    """Version of the package; "" if unknown."""
    sha256: str
    """Hash of names and contents of its source files; "" if none was found."""
    files: int
    commit: str | None = None
    """Commit of the checkout in which the files are tracked; None: they are in none."""
    dirty: bool | None = None

    def text(self) -> str:
        """Return it in one line: version, hash, commit."""
        parts = [f"{self.distribution} {self.version}".strip() or "no package",
                 f"source sha256 {self.sha256[:12]}" if self.sha256 else "source not found"]
        if self.commit:
            parts.append(f"commit {self.commit[:12]}{' with uncommitted changes' if self.dirty else ''}")
        return ", ".join(parts)


def plugin_code(plan: Plan) -> tuple[PluginCode, ...]:
    """Return the code of every plug-in in `plan` that another package brings, by name."""
    chosen = {(choice.seam, choice.kind) for cell in plan.cells for choice in cell.choices.plugins()}
    points = [(f"{seam} {kind}", registry.entry_point(seam, kind)) for seam, kind in sorted(chosen)]
    found: dict[tuple[str, str], PluginCode] = {}
    """(package, top-level module) -> the code of its first plug-in."""
    result = []
    for name, point in points:
        if point is not None:
            key = (point.dist.name if point.dist else "", point.module.partition(".")[0])
            if key not in found:
                found[key] = _code(name, point)
            result.append(found[key].model_copy(update={"plugin": name}))
    return tuple(result)


def _code(plugin: str, point: EntryPoint) -> PluginCode:
    files = dict(sorted(_source_files(point)))
    digest = hashlib.sha256()
    for name, path in files.items():
        digest.update(json.dumps([name, hashlib.sha256(path.read_bytes()).hexdigest()]).encode())
    commit, dirty = _checkout([*files.values()])
    return PluginCode(
        plugin=plugin, distribution=point.dist.name if point.dist else "",
        version=point.dist.version if point.dist else "", sha256=digest.hexdigest() if files else "",
        files=len(files), commit=commit, dirty=dirty,
    )


def _source_files(point: EntryPoint) -> Iterator[tuple[str, Path]]:
    """Yield (name, path) of the files of the distribution, and of the modules that the entry point imports next to it.

    The second are what an editable installation has, or one without a list of files.
    """
    listed = {str(item): Path(str(item.locate())) for item in (point.dist.files if point.dist else None) or ()}
    plain = {name: path for name, path in listed.items() if path.suffix in SOURCES and ".dist-info" not in name}
    yield from ((name, path) for name, path in plain.items() if path.is_file())
    root = _root(point.module)
    if root is not None and not any(path.resolve().is_relative_to(root) for path in plain.values()):
        yield from _modules(point.module.partition(".")[0], root)


def _root(module: str) -> Path | None:
    """Return the folder that holds the top-level package or module; None if it is not on the path."""
    try:
        spec = find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        return None
    places = [*(spec.submodule_search_locations or ()), spec.origin or ""] if spec else []
    return next((Path(place).resolve().parent for place in places if place), None)


def _modules(first: str, root: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files of a top-level package or module and, in turn, of those in the same folder that it imports."""
    waiting, seen = [first], {first}
    while waiting:
        module = waiting.pop()
        files = _files_of(module, root)
        if module != first and files and module in packages_distributions():
            continue  # another package, installed in the same folder: `packages` of the environment has its version
        for path in files:
            yield path.relative_to(root).as_posix(), path
            named = _imported(path) - seen
            seen |= named
            waiting += sorted(named)


def _files_of(module: str, root: Path) -> list[Path]:
    package = root / module
    if package.is_dir():
        return [path for path in sorted(package.rglob("*")) if path.suffix in SOURCES and path.is_file()]
    spec = PathFinder.find_spec(module, [str(root)])
    return [Path(spec.origin)] if spec is not None and spec.origin and Path(spec.origin).is_file() else []


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


def _checkout(files: Iterable[Path]) -> tuple[str | None, bool | None]:
    """Return commit and state of the checkout that tracks `files`; (None, None) if none does."""
    places = [str(path) for path in files]
    folder = str(Path(places[0]).parent) if places else "."
    if not places or not _git(folder, "ls-files", "--", *places[:100]):
        return None, None
    status = _git(folder, "status", "--porcelain", "--", *sorted({str(Path(place).parent) for place in places})[:1000])
    return (_git(folder, "rev-parse", "HEAD") or "").strip() or None, None if status is None else bool(status.strip())


def _git(folder: str, *arguments: str) -> str | None:
    try:
        found = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True, timeout=20,
                               check=False)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return found.stdout if found.returncode == 0 else None
