"""Consent to what a record brings: code that would run, and options that name a path, a command or a host."""

from __future__ import annotations

import hashlib
import json
import re
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path, PurePath, PurePosixPath
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from repro.core import registry
from repro.core.errors import UsageError
from repro.core.redact import credential_in, secrets
from repro.core.source_code import allowed
from repro.seams.plugin import Reach
from repro.suite.kinds.trial_config import CarriedCode
from repro.suite.planning.cell import Cell

if TYPE_CHECKING:
    from repro.suite.planning.plan import Plan


LEAST_DIGITS = 12
"""Digits of the hash that are enough for a record which the user has read. Two records that agree in so few can be made
on purpose, so an error shows all 64."""


def carried_by(cells: Iterable[Cell], base: str = "") -> list[CarriedCode]:
    """Return all code that trials of the cells execute and that no package brings, each once, sorted.

    Args:
        base: folder in which programs run, relative to the record; "": from their stored source.
    """
    found = sorted({item for cell in cells for item in cell.choices.carried_code()})
    return [*found, CarriedCode("in the folder of the suite", "", base)] if found and base else found


def code_sha256(items: Iterable[CarriedCode]) -> str:
    """Return the hash of all of it together, which a user states to allow it."""
    listed = sorted([item.what, item.sha256, item.place] for item in items)
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()


def require_code(source: str, cells: Sequence[Cell], given: str | None, base: str = "") -> None:
    """Refuse a record that brings code unless the user states its hash.

    Args:
        source: the record, for the error.
        given: the hash, or its first digits; None: nothing is allowed.
        base: folder in which programs run, relative to the record; "": from their stored source.

    Raises:
        UsageError: what would run, where its source lies, and how to allow it; or `given` does not fit.
    """
    found = carried_by(cells, base)
    if given is not None and not re.fullmatch(rf"[0-9a-f]{{{LEAST_DIGITS},64}}", given.lower()):
        raise UsageError(f"--allow-code {given[:80]}: must be the hash that the error without it shows, or its first "
                         f"{LEAST_DIGITS} or more hex digits")
    if not found:
        if given is not None:
            raise UsageError(f"--allow-code {given[:16]}: {source} contains no code; leave the option out")
        return
    whole = code_sha256(found)
    if given is not None and whole.startswith(given.lower()):
        return
    names = "; ".join(item.text() for item in found)  # all of them: the author of a record chose their order
    other = f"--allow-code {given[:16]} is the hash of other code; " if given is not None else ""
    raise UsageError(f"{source}: {other}this would run code that the record brings: {names}; read "
                     f"{_reading(source, found)}, and if you trust it add --allow-code {whole}")


def _reading(source: str, found: Iterable[CarriedCode]) -> str:
    """Return where the code is read: of a bundle, a command that shows its files."""
    if not Path(source).is_file():
        return "it there"
    folders = dict.fromkeys(quote(f"{'/'.join(PurePosixPath(item.place).parts[:2])}/*") for item in found)
    return f"it with `unzip -p {quote(source)} {' '.join(folders)} | less`"


HARMLESS = (bool, int, float, complex, Decimal, date, time, timedelta, Enum, type(None))
ADDRESSES = ("pydantic.networks", "pydantic_core._pydantic_core", "ipaddress")
"""Modules of the types of addresses."""
WITH_OPTIONS = ("trial", "matrix", "exclude", "baseline", "primary")
"""Fields of a suite that hold options as they were written."""
SHOWN = 4
"""Number of values that an error names."""


@dataclass(frozen=True, slots=True)
class Reaching:
    """A value of an option that leads, or could lead, out of the run."""

    option: str
    """The seam and the option, dotted: `workload.folder`."""
    value: str
    what: str
    """"path", "command", "host"; "text": free text that could name any of them."""

    @property
    def permission(self) -> str:
        """The text by which a user allows this very value."""
        return f"{self.option}={self.value}"

    def text(self) -> str:
        name = f"a {self.what}" if self.what != "text" else "free text, which may be a path, a command or a host"
        return f"{self.option} is {name}: {self.value[:200]!r}"


def reaching(cells: Iterable[Cell]) -> list[Reaching]:
    """Return the values of all plug-ins of the cells that lead out of the run, each once.

    A value that is the default of the plug-in installed here is this machine's choice, and is left out.
    """
    found: dict[str, Reaching] = {}
    for cell in cells:
        for choice in cell.choices.plugins():
            for item in _of_model(choice.plugin, choice.seam):
                found.setdefault(item.permission, item)
    return list(found.values())


def permissions(cells: Sequence[Cell], base: str = "") -> str:
    """Return the arguments that allow all code and everything that leads out of the run; "" if there is nothing.

    Args:
        base: as for `carried_by`.
    """
    code = carried_by(cells, base)
    return "".join(f" --allow {quote(item.permission)}" for item in reaching(cells)) + (
        f" --allow-code {code_sha256(code)}" if code else "")


def permits(cells: Sequence[Cell], base: str = "") -> str:
    """Return the hash of all that `permissions` allows."""
    return hashlib.sha256(permissions(cells, base).encode()).hexdigest()


def require_allowed(source: str, cells: Sequence[Cell], allowed: Sequence[str]) -> None:
    """Refuse the cells of a record if an option leads out of the run and the user has not allowed that very value.

    Args:
        source: the record, for the error.
        allowed: texts `SEAM.OPTION=VALUE`.

    Raises:
        UsageError: the options, and how to allow them; or `allowed` names none of the record.
    """
    found = reaching(cells)
    if unknown := [text for text in allowed if text not in {item.permission for item in found}]:
        known = "; ".join(item.permission for item in found[:SHOWN]) or "none"
        raise UsageError(f"--allow {unknown[0]}: the record has no such value; values that need it: {known}")
    if left := [item for item in found if item.permission not in allowed]:
        more = f" (and {len(left) - SHOWN} more)" if len(left) > SHOWN else ""
        flags = " ".join(f"--allow {quote(item.permission)}" for item in left[:SHOWN])
        raise UsageError(f"{source}: {'; '.join(item.text() for item in left[:SHOWN])}{more}: a record may not choose "
                         f"what is read, written or run here; if you trust it, allow exactly that value: {flags}")


def refuse_credentials(plan: Plan, environment: Mapping[str, str]) -> None:
    """Refuse a suite whose options hold a credential: all of them are stored, compared and published.

    Text counts wherever it is: in keys, in defaults, in options marked as harmless, in combinations that are skipped.

    Raises:
        UsageError: an option holds one; the value is not shown.
    """
    if what := credential_in(plan.suite.suite, environment):
        raise UsageError(f"suite: its name holds {what}; give the suite another name")
    for choice in {choice.code: choice for cell in plan.cells for choice in cell.choices.plugins()}.values():
        _refuse_in_source(choice.code, environment)
    words = _schema_words(plan)
    complete = [(choice.seam, choice.options) for cell in plan.cells for choice in cell.choices.plugins()]
    written = plan.suite.model_dump(mode="json", include=set(WITH_OPTIONS))
    seen: set[str] = set()
    for place, options in [*complete, *written.items()]:
        for option, text in _texts(options, place):
            if text not in seen and text not in words and (what := credential_in(text, environment)):
                raise UsageError(f"{option}: holds {what}; options are part of every record. A plug-in should read a "
                                 "credential from a variable or a file")
            seen.add(text)


def _refuse_in_source(code: str, environment: Mapping[str, str]) -> None:
    source, hidden = allowed(code), secrets(environment)
    for name, content in source.files.items() if source else ():
        for number, line in enumerate(content.decode().splitlines(), 1):
            if "://" not in line and not any(value in line for value in hidden):
                continue
            for word in line.split() if "://" in line else [line]:
                if what := credential_in(word, environment):
                    raise UsageError(f"{name}:{number}: holds {what}; the source is part of every record. Read a "
                                     "credential from a variable or a file")


def _schema_words(plan: Plan) -> set[str]:
    """Return names of fields and built-in plug-ins: words of this package, whatever variables happen to hold them."""
    plugins = [choice.plugin for cell in plan.cells for choice in cell.choices.plugins()]
    words = {name for model in {type(item) for item in plugins} for name in model.model_fields}
    words |= {name for kinds in registry.BUILT_IN.values() for name in kinds}
    words |= {name for cell in plan.cells for name in type(cell.choices).model_fields}
    return words | {part for key in plan.suite.matrix for part in (key, *key.split("."))
                    if all(piece in words for piece in key.split("."))}


def _texts(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """Yield (option, text) of every text in JSON-like options; a key counts as text of the mapping that holds it."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield place, key  # before what is below it: a place that is shown holds no credential
            yield from _texts(item, f"{place}.{key}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _texts(item, f"{place}.{number}")


def _of_model(model: BaseModel, place: str) -> Iterator[Reaching]:
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if value != field.get_default(call_default_factory=True):
            mark = next((item for item in field.metadata if isinstance(item, Reach)), None)
            yield from _walk(value, field.annotation, f"{place}.{name}", mark)


def _walk(value: Any, annotation: Any, place: str, mark: Reach | None) -> Iterator[Reaching]:
    """Yield what is reaching in a value; `mark` is that of the type around it."""
    kinds, own = _unfold(annotation)
    mark = own or mark
    if isinstance(value, HARMLESS) or (mark is not None and mark.what == "nothing"):
        return
    if any(get_origin(kind) is Literal and value in get_args(kind) for kind in kinds):
        return
    inner = [get_args(kind) for kind in kinds]
    if isinstance(value, BaseModel):
        yield from _of_model(value, place)
    elif isinstance(value, Mapping):
        of_keys, below = next((each for each in inner if len(each) == 2), (Any, Any))
        for key, item in value.items():
            yield from _walk(key, of_keys, place, mark)
            yield from _walk(item, below, f"{place}.{key}", mark)
    elif isinstance(value, list | tuple | set | frozenset):
        below = next((each[0] for each in inner if each), Any)
        for number, item in enumerate(value):
            yield from _walk(item, below, f"{place}.{number}", mark)
    else:
        found = "path" if isinstance(value, PurePath) else "host" if type(value).__module__ in ADDRESSES else "text"
        yield Reaching(place, str(value), mark.what if mark else found)


def _unfold(annotation: Any) -> tuple[list[Any], Reach | None]:
    """Return the alternatives of an annotation, and its mark; of several marks one that leads out."""
    marks: list[Reach] = []
    kinds: list[Any] = []
    waiting = [annotation]
    while waiting:
        kind = waiting.pop()
        if get_origin(kind) is Annotated:
            first, *rest = get_args(kind)
            marks += [item for item in rest if isinstance(item, Reach)]
            waiting.append(first)
        elif get_origin(kind) in (Union, types.UnionType):
            waiting += get_args(kind)
        else:
            kinds.append(kind)
    return kinds, min(marks, key=lambda item: item.what == "nothing", default=None)
