"""A plug-in chosen in a suite: its name and its complete options."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeVar

from pydantic import Field, SerializeAsAny, ValidationError, model_serializer

from repro.core import registry
from repro.core.errors import ReproError, UnknownName
from repro.core.frozen import Frozen
from repro.core.redact import without_users
from repro.core.source_code import is_file_kind
from repro.seams.plugin import Plugin
from repro.suite.field_problem import FieldProblem, as_text, describe_error
from repro.suite.file_classes import file_class
from repro.suite.recorded import (
    NAME,
    RecordedPlugin,
    RecordedPlugins,
    StandIn,
    described,
    facts_of,
    from_data,
    is_label,
    named_options,
)

P = TypeVar("P", bound=Plugin)


class Choice(Frozen):
    """A plug-in by name with its complete options (defaults filled in)."""

    seam: str = Field(exclude=True)
    kind: str
    code: str = ""
    """sha256 of the source of a class from a file (`kind` is then `net.py:Net`); "" for a plug-in that is installed."""
    plugin: SerializeAsAny[Plugin]

    @model_serializer
    def _flat(self) -> dict[str, Any]:
        return {"kind": self.kind, **({"code": self.code} if self.code else {}), **self.options}

    @property
    def options(self) -> dict[str, Any]:
        """The complete options, JSON-like."""
        return self.plugin.model_dump(mode="json")

    def get(self, cls: type[P]) -> P:
        """Return the plug-in as the class that its seam promises."""
        assert isinstance(self.plugin, cls), f"{self.seam} {self.kind} is no {cls.__name__}"
        return self.plugin

    @property
    def label(self) -> str:
        """The name, the options that differ from their defaults, and those that are always shown."""
        return self.label_without(())

    @property
    def changed(self) -> dict[str, Any]:
        """The options that differ from their defaults.

        Of a plug-in that is not installed here, those that the label in its record names.
        """
        if not isinstance(self.plugin, StandIn):
            return self.plugin.model_dump(mode="json", exclude_defaults=True)
        named = named_options(self.plugin.shown, self.kind, self.options)
        assert named is not None, "validated: `RecordedPlugin` refuses another label"
        return {name: self.options[name] for name in named}

    def is_label(self, text: str) -> bool:
        """Return whether `text` may stand for the plug-in: its name, and options that it has."""
        return is_label(text, self.kind, self.options)

    def label_without(self, names: Collection[str]) -> str:
        """Return the label without some options."""
        if isinstance(self.plugin, StandIn):
            return self.plugin.shown
        changed = self.plugin.model_dump(mode="json", exclude_defaults=True)
        changed |= self.plugin.model_dump(mode="json", include=set(self.plugin.always_shown))
        hidden = {*names, *self.plugin.from_data}  # facts of the data: the report has them with the data's identity
        options = ", ".join(f"{key}={as_text(value)}" for key, value in sorted(changed.items()) if key not in hidden)
        return without_users(f"{self.kind} ({options})" if options else self.kind)


def parse_choice(seam: str, value: Any) -> Choice:
    """Parse `ring` or `{kind: ring, ...}` into a Choice whose plug-in accepted the options.

    Raises:
        FieldProblem: no such plug-in, or an option that it does not accept.
    """
    if isinstance(value, Choice):
        return value
    data = {"kind": value} if isinstance(value, str) else value
    if not isinstance(data, Mapping) or not isinstance(data.get("kind"), str):
        article = "an" if seam[0] in "aeiou" else "a"
        raise FieldProblem(f"must be the name of {article} {seam}, or a mapping with `kind: <name>`")
    options = {str(key): item for key, item in data.items() if key != "kind"}
    kind, code = data["kind"], _code(data["kind"], options)
    recorded = described(seam, kind)
    try:
        return _installed(seam, kind, code, options) if recorded is None else \
            _recorded(recorded, seam, kind, code, options)
    except UnknownName as error:
        raise FieldProblem(str(error), () if isinstance(value, str) else ("kind",)) from error


def _code(kind: str, options: dict[str, Any]) -> str:
    """Take the hash of its source from the options of a class from a file; return "" for any other plug-in.

    Raises:
        FieldProblem: it is missing. A suite states a path, which `repro.suite.file_classes` replaces where the
            user's own suite is read; nothing else ever leads to a file.
    """
    if not is_file_kind(kind):
        return ""
    code = options.pop("code", None)
    if not isinstance(code, str) or not re.fullmatch("[0-9a-f]{64}", code):
        raise FieldProblem(f"{kind[:60]!r} is a class from a file, without the sha256 of its source")
    return code


def _installed(seam: str, kind: str, code: str, options: dict[str, Any]) -> Choice:
    """Return the choice of a plug-in that is installed, or of a class from a file that may be imported.

    Options that data give are those of the record that is being read, else of this machine.
    """
    cls = file_class(seam, kind, code) if code else registry.load(seam, kind)
    if not all(name in options for name in cls.from_data):
        found = from_data(seam, kind, code, options, cls.from_data)
        options = {**(cls.found_here(options) if found is None else found), **options}
    try:
        return Choice.model_construct(seam=seam, kind=kind, code=code, plugin=cls.model_validate(options))
    except ValidationError as error:
        problem, path = describe_error(error, cls)
        raise FieldProblem(problem + _owners(seam, error), path) from error


def _owners(seam: str, error: ValidationError) -> str:
    """Return which built-in plug-ins have the option that the first error calls unknown; "" if there is none."""
    first = error.errors(include_url=False)[0]
    if first["type"] != "extra_forbidden" or len(first["loc"]) != 1:
        return ""
    found = [kind for kind in registry.BUILT_IN[seam] if first["loc"][0] in registry.load(seam, kind).model_fields]
    return f"; it is an option of {seam} {' and '.join(found)}" if found else ""


def _recorded(recorded: RecordedPlugins, seam: str, kind: str, code: str, options: dict[str, Any]) -> Choice:
    """Return a choice of a record: of the plug-in as installed if it is what the record describes, else a stand-in."""
    if not re.match(NAME, kind):
        raise FieldProblem(f"no {seam} can have this name: {kind[:60]!r}")
    key = json.dumps([seam, kind, code, options], sort_keys=True)
    if key not in recorded.parsed:
        recorded.parsed[key] = _read(recorded.find(seam, kind, code, options), seam, kind, code, options)
    found: Choice = recorded.parsed[key]
    return found


def _read(item: RecordedPlugin | None, seam: str, kind: str, code: str, options: dict[str, Any]) -> Choice:
    try:
        here = _installed(seam, kind, code, options)
        if item is None or (describe(here, item.written).facts == item.facts and here.options == item.options):
            return here
    except (ReproError, FieldProblem, ValidationError):
        pass  # not installed, not allowed, broken, or of a version with other options
    if item is None:
        raise FieldProblem(f"{seam} {kind!r} is not installed here, and the record does not describe it")
    try:
        return Choice.model_construct(seam=seam, kind=kind, code=code, plugin=item.plugin())
    except ValidationError as error:
        raise FieldProblem(f"lacks what any {seam} has: {describe_error(error, Plugin)[0]}") from error


def describe(choice: Choice, written: Iterable[dict[str, Any]]) -> RecordedPlugin:
    """Return what a record stores of a choice.

    Args:
        written: the options as the suite writes them.

    Raises:
        ValidationError: the class of the plug-in states something of the wrong type.
    """
    facts = facts_of(choice.seam, choice.plugin).model_dump(mode="json")
    return RecordedPlugin.model_validate({
        "seam": choice.seam, "kind": choice.kind, "code": choice.code,
        "distribution": registry.distribution(choice.seam, choice.kind), "shown": choice.label,
        "options": choice.options, "written": tuple(written), "facts": facts,
    })
