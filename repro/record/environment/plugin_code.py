"""Identity of the plug-ins of other packages in a plan: version, hash of the source files, commit of their checkout."""

from __future__ import annotations

import ast
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import Distribution, EntryPoint, packages_distributions
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from repro.core import registry
from repro.core.frozen import Frozen
from repro.core.git import ask_git, git_files, git_hash
from repro.core.source_code import SourceCode, allowed
from repro.suite.choice import Choice
from repro.suite.field_problem import FieldProblem
from repro.suite.kinds import program_files
from repro.suite.kinds.program import Program, ProgramConfig
from repro.suite.planning.plan import Plan

FILE, PROGRAM = "a file", "a program"


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


class PluginCode(Frozen):
    """The code behind one plug-in that is not of this package."""

    plugin: str
    """Seam and name: `workload byte-lm`."""
    distribution: str
    """Name of its package; "" if its entry point belongs to none; `FILE` for a class from a file, `PROGRAM` for a
    program of a user."""
    version: str
    """Version of the package; "" if unknown."""
    sha256: str
    """Hash of names and contents of all its files, but of files above 16 MiB that are no code name and size; "" if
    none was found."""
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


def plugin_code(plan: Plan, root: Path) -> tuple[PluginCode, ...]:
    """Return the code of every plug-in in `plan` that another package or a file brings, by name, and of its programs.

    Args:
        root: folder of the run, to which the folder of the suite's file is relative.
    """
    chosen = {(choice.seam, choice.kind) for cell in plan.cells for choice in cell.choices.plugins()}
    files = {(choice.seam, choice.kind): choice for cell in plan.cells for choice in cell.choices.plugins()
             if choice.code}
    found: dict[tuple[str, str], PluginCode] = {}
    """(package, module) -> its code, not yet named."""
    result = []
    for seam, kind in sorted(chosen):
        if (point := registry.entry_point(seam, kind)) is not None:
            key = (point.dist.name if point.dist else "", point.module)
            if key not in found:
                found[key] = _code(point)
            result.append(found[key].model_copy(update={"plugin": f"{seam} {kind}"}))
    programs = {_of_program(cell.choices.engine, root / plan.base if plan.base else None): None for cell in plan.cells
                if isinstance(cell.choices, ProgramConfig)}
    return (*result, *(_of_file(files[name]) for name in sorted(files)), *programs)


def _of_program(engine: Program, base: Path | None) -> PluginCode:
    """Return the code of a program: the hash of its files, and the commit that has them.

    Args:
        base: folder of the suite's file; None: the files are those of a record.
    """
    places = [f" in {engine.folder}" if engine.folder != "." else "", f" at {engine.commit}" if engine.commit else ""]
    code = PluginCode(plugin=f"program {engine.name}{''.join(places)}", distribution=PROGRAM, version="",
                      sha256=engine.sha256, files=0)
    if base is None:
        return code
    try:
        source = program_files.read(base / engine.folder, engine.files, engine.commit)
    except FieldProblem:
        return code.model_copy(update={"sha256": ""})
    code = code.model_copy(update={"sha256": source.sha256, "files": len(source.files)})
    if engine.commit:
        return code.model_copy(update={
            "commit": program_files.commit_of(base / engine.folder, engine.commit), "dirty": False})
    commit, dirty = _commit_of(source)
    return code.model_copy(update={"commit": commit, "dirty": dirty})


def _of_file(choice: Choice) -> PluginCode:
    """Return the code of a class from a file: the source that the plan was made with, which is what ranks import."""
    source = allowed(choice.code)
    commit, dirty = _commit_of(source) if source else (None, None)
    return PluginCode(plugin=f"{choice.seam} {choice.kind}", distribution=FILE, version="", sha256=choice.code,
                      files=len(source.files) if source else 0, commit=commit, dirty=dirty)


def _commit_of(source: SourceCode) -> tuple[str | None, bool | None]:
    """Return commit and state of the checkout that tracks a file of the source; (None, None) if none does."""
    root = source.root.resolve()
    # Not `git status`: it starts the filters that a repository of somebody else names, to compare files.
    tracked = git_files(root, "HEAD", list(source.files))
    if not tracked:
        return None, None
    return ask_git(root, "rev-parse", "HEAD"), any(
        name not in tracked or git_hash(content, tracked[name].blob) != tracked[name].blob
        for name, content in source.files.items())


def _code(point: EntryPoint) -> PluginCode:
    files = source_files(point)
    digest = hashlib.sha256()
    for name, content in sorted((item.name, item.digest()) for item in files):
        digest.update(json.dumps([name, content]).encode())
    commit, dirty = _checkout(own_file(point), [item.path for item in files])
    return PluginCode(
        plugin="", distribution=point.dist.name if point.dist else "",
        version=point.dist.version if point.dist else "", sha256=digest.hexdigest() if files else "",
        files=len(files), commit=commit, dirty=dirty,
    )


def _checkout(own: Path | None, files: Iterable[Path]) -> tuple[str | None, bool | None]:
    """Return commit and state of the checkout that tracks the plug-in's module; (None, None) if none does.

    Args:
        own: the file of that module.
        files: all files of the plug-in; those of the checkout decide its state.
    """
    if own is None or not ask_git(own.parent, "ls-files", "--", str(own)):
        return None, None
    top = Path(ask_git(own.parent, "rev-parse", "--show-toplevel") or "")
    folders = {str(path.resolve().parent) for path in files if path.resolve().is_relative_to(top)}
    status = ask_git(top, "status", "--porcelain", "--", *sorted(folders)[:1000])
    return ask_git(top, "rev-parse", "HEAD"), None if status is None else bool(status)
