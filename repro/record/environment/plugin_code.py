"""Identity of the plug-ins of other packages in a plan: version, hash of the source files, commit of their checkout."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from importlib.metadata import EntryPoint
from pathlib import Path

from repro.core import git, registry
from repro.core.frozen import Frozen
from repro.core.source_import import allowed
from repro.record.environment.plugin_files import own_file, source_files
from repro.suite.choices.choice import Choice
from repro.suite.field_problem import FieldProblem
from repro.suite.kinds import program_files
from repro.suite.kinds.program import Program, ProgramConfig
from repro.suite.planning.plan import Plan

FILE, PROGRAM = "a file", "a program"


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
    points = [(f"{seam} {kind}", registry.entry_point(seam, kind)) for seam, kind in sorted(chosen)]
    files = {(choice.seam, choice.kind): choice for cell in plan.cells for choice in cell.choices.plugins()
             if choice.code}
    found: dict[tuple[str, str], PluginCode] = {}
    """(package, module) -> the code of its first plug-in."""
    result = []
    for name, point in points:
        if point is not None:
            key = (point.dist.name if point.dist else "", point.module)
            if key not in found:
                found[key] = _code(name, point)
            result.append(found[key].model_copy(update={"plugin": name}))
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
    paths = [str(source.root / name) for name in source.files]
    if not git.ask(source.root, "ls-files", "--", *paths):
        return code
    status = git.ask(source.root, "status", "--porcelain", "--", *paths)
    return code.model_copy(update={"commit": git.ask(source.root, "rev-parse", "HEAD"), "dirty": bool(status)})


def _of_file(choice: Choice) -> PluginCode:
    """Return the code of a class from a file: the source that the plan was made with, which is what ranks import."""
    source = allowed(choice.code)
    files = [source.root / name for name in source.files] if source else []
    commit, dirty = _checkout(files[0].resolve(), files) if files else (None, None)
    return PluginCode(plugin=f"{choice.seam} {choice.kind}", distribution=FILE, version="", sha256=choice.code,
                      files=len(files), commit=commit, dirty=dirty)


def _code(plugin: str, point: EntryPoint) -> PluginCode:
    files = source_files(point)
    digest = hashlib.sha256()
    for name, content in sorted((item.name, item.digest()) for item in files):
        digest.update(json.dumps([name, content]).encode())
    commit, dirty = _checkout(own_file(point), [item.path for item in files])
    return PluginCode(
        plugin=plugin, distribution=point.dist.name if point.dist else "",
        version=point.dist.version if point.dist else "", sha256=digest.hexdigest() if files else "",
        files=len(files), commit=commit, dirty=dirty,
    )


def _checkout(own: Path | None, files: Iterable[Path]) -> tuple[str | None, bool | None]:
    """Return commit and state of the checkout that tracks the plug-in's module; (None, None) if none does.

    Args:
        own: the file of that module.
        files: all files of the plug-in; those of the checkout decide its state.
    """
    if own is None or not git.ask(own.parent, "ls-files", "--", str(own)):
        return None, None
    top = Path(git.ask(own.parent, "rev-parse", "--show-toplevel") or "")
    folders = {str(path.resolve().parent) for path in files if path.resolve().is_relative_to(top)}
    status = git.ask(top, "status", "--porcelain", "--", *sorted(folders)[:1000])
    return git.ask(top, "rev-parse", "HEAD"), None if status is None else bool(status)
