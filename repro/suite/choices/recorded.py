"""Plug-ins of others as a record describes them, and the context in which choices are read from a record."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from repro.core import registry
from repro.core.frozen import Frozen
from repro.core.source_code import is_file_kind
from repro.seams.plugin import Plugin
from repro.suite.choices.facts import FACTS, Facts
from repro.suite.choices.labels import is_label
from repro.suite.choices.stand_in import stand_in

NAME = r"^[\w.+-]{1,100}(\.py:[^\W\d]\w{0,99})?$"
"""Names that a record may give to plug-ins that are not installed, and to classes from files."""


class RecordedPlugin(Frozen):
    """One plug-in of another package with its options: what readers need to know of it; or one of this package, some of
    whose options the data on the machine of the run have given."""

    seam: Literal["workload", "engine", "comm", "precision", "optimizer", "launcher", "preconditioner", "measurement"]
    kind: str = Field(pattern=NAME)
    code: str = Field("", pattern="^([0-9a-f]{64})?$")
    """sha256 of the source of a class from a file."""
    distribution: str = Field("", max_length=200)
    """Name and version of the package that it came from; "" if unknown."""
    shown: str = Field(max_length=20_000)
    """Its label."""
    options: dict[str, Any]
    """Complete, with the defaults."""
    written: tuple[dict[str, Any], ...] = ()
    """The options as the suite writes them, in every way that gives these."""
    facts: dict[str, Any]

    @model_validator(mode="after")
    def _facts_of_its_seam(self) -> RecordedPlugin:
        known = FACTS[self.seam].model_validate(self.facts)
        object.__setattr__(self, "facts", known.model_dump(mode="json"))
        return self

    @model_validator(mode="after")
    def _label_of_its_options(self) -> RecordedPlugin:
        if not is_label(self.shown, self.kind, self.options):
            raise ValueError("shown: states other options than the plug-in has")
        return self

    def plugin(self) -> Plugin:
        """Return the stand-in for it."""
        came = f" (it came with {self.distribution})" if self.distribution else ""
        missing = absence(self.seam, self.kind, came, self.code)
        return stand_in(self.seam, self.options, self._facts(), self.shown, missing)

    def _facts(self) -> Facts:
        return FACTS[self.seam].model_validate(self.facts)


def absence(seam: str, kind: str, came: str, code: str) -> str:
    """Return the sentence that says what is missing for a run."""
    if is_file_kind(kind):
        return (f"{seam} {kind!r} is a class from a file, whose source the record holds (sha256 {code[:16]}); reading "
                "a record runs none of it")
    return (f"{seam} {kind!r} is not installed here as the record describes it{came}; the record can be read, "
            "verified and compared, but not run")


class RecordedPlugins:
    """The plug-ins that one record describes, found by their options, complete or as written."""

    def __init__(self, items: Sequence[RecordedPlugin]) -> None:
        self._items = {self._key(item.seam, item.kind, item.code, options): item for item in items
                       for options in (*item.written, item.options)}
        self.parsed: dict[str, Any] = {}
        """Choices that were parsed already: a plan names each in hundreds of cells."""

    def find(self, seam: str, kind: str, code: str, options: Mapping[str, Any]) -> RecordedPlugin | None:
        return self._items.get(self._key(seam, kind, code, options))

    @staticmethod
    def _key(seam: str, kind: str, code: str, options: Mapping[str, Any]) -> str:
        # As a suite writes the options of a class from a file, the hash of its source is among them.
        plain = {key: value for key, value in options.items() if key != "code"}
        return json.dumps([seam, kind, code, plain], sort_keys=True)


_current: ContextVar[RecordedPlugins | None] = ContextVar("recorded", default=None)
_LIST = TypeAdapter(tuple[RecordedPlugin, ...])


@contextmanager
def reading(plugins: Any) -> Iterator[None]:
    """Inside, choices are those of a record: a plug-in that is not installed has a stand-in.

    Args:
        plugins: the descriptions, parsed or not; an invalid one is reported by the model that holds it.
    """
    try:
        items = _LIST.validate_python(plugins)
    except ValidationError:
        items = ()
    token = _current.set(RecordedPlugins(items))
    try:
        yield
    finally:
        _current.reset(token)


def from_data(
    seam: str, kind: str, code: str, options: Mapping[str, Any], names: Sequence[str]
) -> dict[str, Any] | None:
    """Return what the record says of options that the data of its machine gave; None: no record is being read."""
    current = _current.get()
    if current is None:
        return None
    item = current.find(seam, kind, code, options)
    return {name: item.options[name] for name in names if name in item.options} if item else {}


def described(seam: str, kind: str) -> RecordedPlugins | None:
    """Return the descriptions that count for a choice; None: it is read as installed, because no record is being read
    or because the plug-in belongs to this package: a record cannot redefine those."""
    return None if kind in registry.BUILT_IN[seam] else _current.get()
