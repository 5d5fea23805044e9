"""Find and read a suite: a bundled name or a path, overrides applied, every problem with its place."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from repro.core import pattern
from repro.core.errors import SuiteError, nearest, one_line
from repro.core.redact import masked
from repro.core.source_code import SourceCode
from repro.core.yaml_file import FieldPath, YamlFile, dotted, read_yaml
from repro.suite.design import ANYTIME, ChosenDesign
from repro.suite.field_problem import FieldProblem, describe_error, known_keys
from repro.suite.file_classes import MEANT, Base, FileClasses
from repro.suite.kinds.kinds import PROGRAM, config_class
from repro.suite.model import Suite

SUITE_LEVEL = ("seeds", "master_seed", "sequential")
"""Keys that an override sets on the suite itself; every other key is a field of a trial."""
OF_TUNING = ("tune.trials", "tune.seeds", "tune.search", "tune.master_seed")
"""Keys that an override sets on the declaration of the tuning."""
PROSE = ("title", "description", "source", "expected", "changes")
"""Keys of a suite that hold text for readers."""
OF_A_RECORD = ("this suite is in a record, whose classes from files run only after consent: use `repro reproduce` or "
               "`repro run --resume` with --allow-code")


@dataclass(slots=True)
class SuiteFile:
    """A suite and where each of its fields was written."""

    text: str
    """The file without credentials, as it is stored with a run."""
    source: YamlFile
    suite: Suite = field(init=False)
    overrides: dict[FieldPath, str] = field(default_factory=dict)
    sources: dict[str, SourceCode] = field(default_factory=dict)
    """File name -> source of the classes that it takes from files, which planning imports."""

    @property
    def folder(self) -> Path:
        """Folder of the file, to which the paths in it are relative."""
        return Path(self.source.name).resolve().parent

    def problem(self, text: str, path: FieldPath) -> SuiteError:
        """Return `text` as an error that names file, line and field, or the override that set the field."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.overrides:
                return SuiteError(text, file=self.overrides[path[:length]], field=dotted(path))
        below = [shown for key, shown in self.overrides.items() if len(path) > 1 and key[:len(path)] == path]
        if below:
            return SuiteError(text, file=below[-1], field=dotted(path))
        if shown := self._behind(path):
            return SuiteError(text, file=shown, field=dotted(path))
        return SuiteError(text, file=self.source.name, line=self.source.line(path), field=dotted(path))

    def _behind(self, path: FieldPath) -> str:
        """Return the overrides that cause a problem which shows in another field; "" if there are none.

        The global batch must be divisible by two other fields; what a machine cannot run may come from any field.
        """
        parts = {"processes", "accumulation"} if path[-2:] == ("batch", "global") else None
        if parts is None and path != ("trial",):
            return ""
        found = [shown for key, shown in self.overrides.items()
                 if key[0] in ("trial", "matrix") and (parts is None or str(key[-1]).split(".")[-1] in parts)]
        return " ".join(dict.fromkeys(found))


def bundled() -> list[str]:
    """Return the names of the suites that come with the package."""
    importlib.import_module("repro")
    return sorted(item.name[:-5] for item in files("repro.suites").iterdir() if item.name.endswith(".yaml"))


def read_suite(
    suite: str | Mapping[str, Any], overrides: Sequence[str] = (), design: ChosenDesign | None = None,
    options: Mapping[str, object] | None = None,
) -> SuiteFile:
    """Read a bundled suite by name, any suite by path or by its content, and apply `key=value` overrides.

    Args:
        suite: name, path, or what a file would hold; paths in such a suite are relative to the working directory.
        design: a sequential design for a suite that declares none.
        options: field of the suite -> value of the option of this name, for example master_seed of --master-seed;
            None: it is not given.

    Raises:
        SuiteError: no such suite, or a problem in it or in an override, with its place.
    """
    name_or_path = suite if isinstance(suite, str) else "suite.yaml"
    source, text = _open(suite) if isinstance(suite, str) else _as_file(name_or_path, suite)
    if not isinstance(source.data, dict):
        raise SuiteError("is not a suite: a mapping with `suite:` and `trial:` is expected", file=source.name, line=1)
    written: dict[FieldPath, str] = {}
    data = {key: _without_secrets(item) if key in PROSE else item for key, item in source.data.items()}
    holder = SuiteFile(text=masked(text), source=source, overrides=written)
    classes, folder = FileClasses(holder.problem), Path(name_or_path).parent
    data = classes.pinned(data, Base(folder, absolute=False, why_not=OF_A_RECORD if _is_record(folder) else ""))
    for override in overrides:
        _apply(data, override, written)
    data = classes.pinned(data, Base(Path(), absolute=True))
    holder.sources = classes.sources(data)
    for name, value in (options or {}).items():
        if value is not None:
            data[name], written[name,] = value, f"--{name.replace('_', '-')} {value}"
    if ("seeds",) in written and (design is not None or data.get("sequential") is not None):
        end = f"leave out {design.option}" if design else "add -o sequential=null"
        raise SuiteError("a sequential design runs up to its last look; leave this out, or for a fixed number "
                         f"{end}", file=written["seeds",])
    if design is not None:
        data = _with_design(data, design, written)
    try:
        holder.suite = Suite.model_validate(data)
    except ValidationError as error:
        problem, path = describe_error(error, Suite)
        raise holder.problem(problem, path) from error
    _check_factors(holder)
    if _is_record(folder) and _starts_command(holder.suite):
        raise holder.problem("this suite is in a record, whose commands run only after consent: use `repro "
                             "reproduce` or `repro run --resume`", ("trial",))
    return holder


def _as_file(name: str, content: Mapping[str, Any]) -> tuple[YamlFile, str]:
    try:
        text = yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True)
    except yaml.YAMLError as error:
        raise SuiteError(f"holds a value that no file can hold: {one_line(str(error))}", file=name) from None
    return YamlFile(name, text), text


def _starts_command(suite: Suite) -> bool:
    """Return whether a cell may be a program: by its kind, or by an engine in the trial or in a factor."""
    places = [suite.trial, *({key: level} for key, levels in suite.matrix.items() for level in levels)]
    return any(item.get("kind") == PROGRAM or item.get("engine.kind") == PROGRAM
               or (isinstance(engine := item.get("engine"), dict) and engine.get("kind") == PROGRAM) for item in places)


def _is_record(folder: Path) -> bool:
    return (folder / "plan.json").exists() and any(
        (folder / name).exists() for name in ("sha256sums.txt", "ledger.jsonl", "trials", "code"))


def _with_design(data: dict[str, Any], design: ChosenDesign, written: dict[FieldPath, str]) -> dict[str, Any]:
    """Return the suite with a design of the command line, unless it declares one that this option means, too."""
    own = data.get("sequential")
    if own is not None:
        if design is ANYTIME and not (isinstance(own, dict) and own.get("anytime") is True):
            raise SuiteError("the suite declares looks; leave it out, or add -o sequential=null", file=design.option)
        return data
    written |= {("sequential",): design.option, ("seeds",): design.option}
    return {**data, "sequential": dict(design.fields), "seeds": design.seeds}


def _without_secrets(item: Any) -> Any:
    """Return the text of a suite without the credentials of this environment: it is printed, stored and published."""
    if isinstance(item, list):
        return [_without_secrets(each) for each in item]
    if isinstance(item, dict):
        return {key: _without_secrets(each) for key, each in item.items()}
    return masked(item) if isinstance(item, str) else item


def _open(name_or_path: str) -> tuple[YamlFile, str]:
    path = Path(name_or_path)
    looks_like_path = path.suffix in (".yaml", ".yml") or "/" in name_or_path
    if not looks_like_path:
        if name_or_path not in bundled():
            known = nearest(name_or_path, bundled())
            raise SuiteError(f"no suite named {name_or_path!r}{known} (give your own suite by its path)")
        text = files("repro.suites").joinpath(f"{name_or_path}.yaml").read_text(encoding="utf-8")
        return YamlFile(f"{name_or_path}.yaml", text), text
    if not path.is_file():
        what = "is a folder, not a suite file" if path.is_dir() else "there is no such file"
        raise SuiteError(what, file=name_or_path)
    source = read_yaml(path, name_or_path)
    return source, path.read_text(encoding="utf-8")


def _apply(data: dict[str, Any], override: str, written: dict[FieldPath, str]) -> None:
    shown = f"-o {override}"
    key, equals, text = override.partition("=")
    key = key.strip().removeprefix("trial.")
    if not equals or not key or not text.strip():
        raise SuiteError("an override is written key=value, for example -o processes=1,2", file=shown)
    values = YamlFile(shown, f"[{text}]").data
    if key.endswith(".kind") and any(MEANT.search(item) for item in values if isinstance(item, str)):
        raise SuiteError(f"give a class from a file as {key.removesuffix('.kind')}=path/to/file.py:Class", file=shown)
    if key.split(".")[0] == "tune":
        _apply_to_tuning(data, key, values, shown)
        written[tuple(key.split("."))] = shown
        return
    if key in SUITE_LEVEL:
        if key == "sequential" and values != [None]:
            raise SuiteError("only sequential=null can be given, for a fixed number of pairs", file=shown)
        data[key] = values[0] if len(values) == 1 else values
        written[(key,)] = shown
        return
    head = key.split(".")[0]
    try:
        trial = data.get("trial")
        fields = known_keys(config_class(trial if isinstance(trial, dict) else {}), ())
    except FieldProblem:
        fields = [head]  # a problem of the file, reported when the suite is checked
    if head not in fields:
        raise SuiteError(f"no field named {head!r}{nearest(head, [*fields, *SUITE_LEVEL])}", file=shown)
    _set_factor(data, key, values, shown, written)


def _apply_to_tuning(data: dict[str, Any], key: str, values: list[Any], shown: str) -> None:
    """Set a field of `tune`, or leave the tuning out."""
    if key == "tune" and values == [None]:
        data["tune"] = None
        return
    if key not in OF_TUNING or len(values) != 1:
        raise SuiteError(f"of a tuning only these can be given, with one value: {', '.join(OF_TUNING)}, tune=null",
                         file=shown)
    if not isinstance(data.get("tune"), dict):
        raise SuiteError("the suite has no `tune` block", file=shown)
    data["tune"] = data["tune"] | {key.partition(".")[2]: values[0]}


def _set_factor(data: dict[str, Any], key: str, values: list[Any], shown: str, written: dict[FieldPath, str]) -> None:
    """Set a field to one value, or make it a factor of several; a factor above or below the key is replaced."""
    if not isinstance(data.get("matrix", {}), dict) or not isinstance(data.get("trial", {}), dict):
        return  # the file itself is wrong, and the override must not hide that
    matrix, trial = dict(data.get("matrix", {})), dict(data.get("trial", {}))
    covering = next((name for name in matrix if key.startswith(f"{name}.")), None)
    if covering and isinstance(matrix[covering], list) and len(values) == 1:
        levels = [{"level": level} for level in matrix[covering]]
        for item in levels:
            pattern.put(item, f"level{key.removeprefix(covering)}", values[0])
        matrix[covering] = [item["level"] for item in levels]
        written[("matrix", covering)] = shown
    else:
        for name in [name for name in matrix if name.startswith(f"{key}.")]:
            del matrix[name]
        if len(values) == 1:
            matrix.pop(key, None)
            pattern.put(trial, key, values[0])
            written[("trial", *key.split("."))] = shown
        else:
            matrix[key] = values
            written[("matrix", key)] = shown
    data["matrix"], data["trial"] = matrix, trial


def _check_factors(holder: SuiteFile) -> None:
    """Check that every factor of the suite is a field of its kind of trial."""
    suite = holder.suite
    try:
        known = known_keys(config_class(suite.trial), ())
    except FieldProblem as error:
        raise holder.problem(str(error), ("trial", *error.path)) from error
    places: dict[FieldPath, Iterable[str]] = {
        ("matrix",): suite.matrix, ("trial",): suite.trial, ("baseline",): suite.baseline,
        **{("exclude", index): item for index, item in enumerate(suite.exclude)}}
    if suite.primary:
        places |= {("primary", "candidate"): suite.primary.candidate, ("primary", "baseline"): suite.primary.baseline}
    if suite.tune:
        places["tune", "at"] = suite.tune.at
        for place, space in enumerate(suite.tune.spaces):
            places |= {("tune", "spaces", place, "for"): space.for_, ("tune", "spaces", place, "space"): space.space}
    places |= {("settings", place, "set"): item.values for place, item in enumerate(suite.settings)}
    for path, keys in places.items():
        for key in keys:
            if (head := key.split(".")[0]) not in known:
                raise holder.problem(f"unknown key{nearest(head, known)}", (*path, key))
