"""Classes that a suite takes from files: `workload: path/to/net.py:Net` becomes the name `net.py:Net` and a hash.

Paths are looked up here and nowhere else, and only for a suite that the user names: once read, a suite holds no path.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repro.core import registry
from repro.core.errors import UsageError
from repro.core.source_code import NotAllowed, SourceCode, allow, import_class, is_file_kind, read_source
from repro.core.yaml_file import FieldPath
from repro.suite.field_problem import FieldProblem, Problem
from repro.suite.recorded import BASES

WRITTEN = re.compile(r"(.*\.py):(\w+)", re.DOTALL)
MEANT = re.compile(r"\.py(:|$)")
RESERVED = ("kind", "code")
"""Keys of a choice that are no options."""


def file_class(seam: str, kind: str, code: str) -> Any:
    """Return the class `net.py:Net` of a source that may be imported in this process.

    Raises:
        NotAllowed: it may not.
        FieldProblem: it cannot be imported, is no class of this seam, or has an option that cannot be stored.
    """
    try:
        found = import_class(kind, code)
    except NotAllowed:
        raise
    except UsageError as error:
        raise FieldProblem(str(error)) from error
    if not issubclass(found, BASES[seam]):
        kinds = [name for name, base in BASES.items() if issubclass(found, base)]
        is_one = f"; it is one of seam {kinds[0]}" if kinds else ""
        raise FieldProblem(f"{kind} is not of seam {seam}: it does not derive from {BASES[seam].__name__}{is_one}")
    if abstract := sorted(getattr(found, "__abstractmethods__", ())):
        raise FieldProblem(f"{kind} lacks what a {seam} needs: {', '.join(abstract)}")
    if reserved := next((name for name in RESERVED if name in found.model_fields), None):
        raise FieldProblem(f"{kind} has an option {reserved!r}, which names a part of any choice; rename it")
    if option := registry.aliased(found):
        raise FieldProblem(f"{kind}: option {option!r} has an alias, but options are stored and read by the name of "
                           "their field; name the field as suites write it")
    return found


@dataclass(frozen=True, slots=True)
class Base:
    """Folder to which paths in one text of a suite are relative."""

    folder: Path
    absolute: bool
    """True: a path may be absolute; a suite's own text is stored with every record."""
    why_not: str = ""
    """Reason to refuse every class from a file; "" if there is none."""


class FileClasses:
    """Replaces the paths of classes in the data of one suite, and allows their sources in this process."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._read: dict[Path, SourceCode] = {}
        self._known: dict[str, SourceCode] = {}

    def pinned(self, data: dict[str, Any], base: Base) -> dict[str, Any]:
        """Return the data of a suite with names and hashes in place of paths; nothing is executed.

        Raises:
            SuiteError: a path leads to no source that a record can hold.
        """
        found = {key: self._fields(item, (key,), base) if key in ("trial", "matrix", "baseline") else item
                 for key, item in data.items()}
        if isinstance(data.get("exclude"), list):
            found["exclude"] = [self._fields(item, ("exclude", number), base)
                                for number, item in enumerate(data["exclude"])]
        if isinstance(data.get("primary"), Mapping):
            found["primary"] = {
                key: self._fields(item, ("primary", key), base) if key in ("candidate", "baseline") else item
                for key, item in data["primary"].items()}
        return found

    def _fields(self, item: Any, path: FieldPath, base: Base) -> Any:
        if not isinstance(item, Mapping):
            return item  # wrong in another way, which the check of the suite reports
        for key, each in item.items():
            seam, _, rest = str(key).partition(".")
            several = each if isinstance(each, list) else [each]
            if seam in BASES and rest == "kind" and any(MEANT.search(one) for one in several if isinstance(one, str)):
                raise self._problem(f"give a class from a file as `{seam}:` itself", (*path, key))
        return {key: self._choice(each, (*path, key), base) if key in BASES else each for key, each in item.items()}

    def _choice(self, item: Any, path: FieldPath, base: Base) -> Any:
        if isinstance(item, list):
            return [self._choice(each, (*path, number), base) for number, each in enumerate(item)]
        options = item if isinstance(item, Mapping) else {"kind": item}
        kind, place = options.get("kind"), (*path, "kind") if isinstance(item, Mapping) else path
        if options.get("code") in self._known:  # replaced already, before the overrides
            stays = isinstance(kind, str) and is_file_kind(kind)
            return item if stays else {key: each for key, each in options.items() if key != "code"}
        if not isinstance(kind, str) or not MEANT.search(kind):
            return item
        if base.why_not:
            raise self._problem(base.why_not, place)
        if "code" in options:
            raise self._problem("is the sha256 of a source, which only a record states; leave it out", (*path, "code"))
        return {**options, **self._named(kind, base, place)}

    def _named(self, kind: str, base: Base, place: FieldPath) -> dict[str, str]:
        written = WRITTEN.fullmatch(kind)
        if written is None:
            raise self._problem(f"a class from a file is written path/to/file.py:Class (given: {kind[:80]})", place)
        if Path(written[1]).is_absolute() and not base.absolute:
            raise self._problem("write the path relative to the suite's file, whose text every run stores", place)
        path = base.folder / written[1]
        name = f"{path.name}:{written[2]}"
        if not is_file_kind(name):
            raise self._problem(f"{path.name!r} and {written[2]!r} are no names of a file and a class that a record "
                                "can have: letters, digits, `_`, and in a file's name `.`, `+`, `-`", place)
        try:
            source = self._read[path] = self._read.get(path) or read_source(path)
        except UsageError as error:
            raise self._problem(str(error), place) from error
        self._known[source.sha256] = source
        allow(source)
        return {"kind": name, "code": source.sha256}

    def sources(self, data: Mapping[str, Any]) -> dict[str, SourceCode]:
        """Return file name -> source of the classes from files that cells of a pinned suite may have.

        Raises:
            SuiteError: two of them have one name, so that no label could tell them apart.
        """
        found: dict[str, SourceCode] = {}
        for kind, source, path in self._in({key: data.get(key) for key in ("trial", "matrix")}, ()):
            main = kind.partition(":")[0]
            other = found.setdefault(main, source)
            if other.sha256 != source.sha256:
                raise self._problem(f"{source.root / main} and {other.root / main} are two different files of one "
                                    "name; rename one, so that reports can distinguish them", path)
        return found

    def _in(self, item: Any, path: FieldPath) -> Iterator[tuple[str, SourceCode, FieldPath]]:
        """Yield (name, source, path) of every class from a file in the data of a pinned suite."""
        if isinstance(item, list):
            for number, each in enumerate(item):
                yield from self._in(each, (*path, number))
        elif isinstance(item, Mapping):
            if isinstance(item.get("kind"), str) and item.get("code") in self._known:
                yield item["kind"], self._known[item["code"]], path
            for key, each in item.items():
                yield from self._in(each, (*path, key))
