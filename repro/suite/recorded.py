"""Plug-ins as a record describes them: labels, facts, stand-ins, and the context in which choices are read from it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import new_class
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from repro.core import registry
from repro.core.errors import UsageError
from repro.core.frozen import Frozen
from repro.core.redact import without_users
from repro.core.source_code import is_file_kind
from repro.seams.launching import Launcher
from repro.seams.measurement import Measurement
from repro.seams.plugin import Plugin
from repro.seams.training import (
    Comm,
    Direction,
    Engine,
    LossScaling,
    Optimizer,
    Precision,
    Preconditioner,
    TokenKind,
    Workload,
)
from repro.suite.field_problem import as_text


def is_label(text: str, kind: str, options: Mapping[str, Any]) -> bool:
    """Return whether `text` is the name `kind`, or `kind (option=value, ...)` with options of that value.

    Which options a label names depends on the defaults of the plug-in, which change from version to version.
    """
    return named_options(text, kind, options) is not None


def named_options(text: str, kind: str, options: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the names of the options that a label states; None if it is no label of the plug-in."""
    if text == kind:
        return ()
    if not (text.startswith(f"{kind} (") and text.endswith(")")):
        return None
    found: list[str] = []
    rest = text[len(kind) + 2:-1]
    for key, value in sorted(options.items()):
        if rest.startswith(f"{key}=") and (length := _length(rest[len(key) + 1:], value)) is not None:
            rest = rest[len(key) + 1 + length:].removeprefix(", ")
            found.append(key)
            if not rest:
                return tuple(found)
    return None


def is_text_of(text: str, value: Any) -> bool:
    """Return whether `text` states `value`; 1 states 1.0, as a default that no one has converted is written."""
    return _length(text, value) == len(text)


def _length(text: str, value: Any) -> int | None:
    """Return how many characters at the start of `text` state `value`, up to its end or a comma; None: it does not."""
    whole = without_users(as_text(value))
    if text == whole or text.startswith(f"{whole}, "):
        return len(whole)
    if isinstance(value, str | bool | None):
        return None
    try:
        found, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return None
    return end if _is_part(found, value) and text[end:end + 2] in ("", ", ") else None


def _is_part(part: Any, value: Any) -> bool:
    """Return whether `part` is `value`, perhaps without some keys of its mappings: labels leave defaults out."""
    if isinstance(part, dict) and isinstance(value, dict):
        return all(key in value and _is_part(item, value[key]) for key, item in part.items())
    if isinstance(part, list) and isinstance(value, list):
        return len(part) == len(value) and all(map(_is_part, part, value))
    return (type(part) is type(value) and part == value) or (
        {type(part), type(value)} == {int, float} and part == value)


Title = Annotated[str, Field(max_length=1000)]


def _finite(ranges: Any) -> Any:
    """Drop ranges without an end: JSON has no infinity, and a metric without a range accepts any target."""
    if not isinstance(ranges, Mapping):
        return ranges
    return {name: ends for name, ends in ranges.items() if all(map(math.isfinite, ends))}


class Facts(Frozen):
    """Facts of a plug-in of any seam; each is an attribute, a property or a method without arguments of its class."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)  # a later version may store more


class Titled(Facts):
    title: Title = ""


class WorkloadFacts(Titled):
    unit: Title = "samples"
    metrics: dict[str, Direction] = Field(default_factory=dict)
    ranges: Annotated[dict[str, tuple[float, float]], BeforeValidator(_finite)] = Field(default_factory=dict)
    synthetic: bool = False
    reads_samples: bool = True
    """True also for a record that does not say: its plan was accepted."""
    test_views: int | None = Field(None, ge=1)
    tokens_per_sample: int | None = Field(None, ge=1)
    token_losses: dict[str, TokenKind] = Field(default_factory=dict)
    reference_samples_per_second: float = Field(1.0, gt=0)
    train_samples: int = Field(0, ge=0)
    """0: unknown."""
    eval_samples: int = Field(0, ge=0)
    """0: unknown."""


class EngineFacts(Titled):
    needs_parts: bool = True
    checkpoints: bool = False
    zero_stage: int | None = Field(None, ge=0, le=3)


class CommFacts(Titled):
    own_algorithm: bool = True


class PrecisionFacts(Titled):
    autocast: Title | None = None
    weights: Title = "float32"
    master: bool = False
    loss_scaling: LossScaling | None = None
    tf32: bool = False


class PreconditionerFacts(Titled):
    active: bool = True


class LauncherFacts(Titled):
    origin: Literal["measured", "emulated", "simulated"] = "measured"


class MeasurementFacts(Titled):
    items: Title = "operations"
    origin: Literal["measured", "emulated", "simulated"] = "measured"


FACTS: dict[str, type[Facts]] = {
    "workload": WorkloadFacts, "engine": EngineFacts, "comm": CommFacts, "precision": PrecisionFacts,
    "optimizer": Facts, "launcher": LauncherFacts, "preconditioner": PreconditionerFacts,
    "measurement": MeasurementFacts,
}
"""Seam of a trial -> its facts."""


def facts_of(seam: str, plugin: Plugin) -> Facts:
    """Return the facts of a plug-in with its options.

    Raises:
        ValidationError: an attribute of its class is not of the type that the seam states.
    """
    found = {name: getattr(plugin, name) for name in FACTS[seam].model_fields if hasattr(plugin, name)}
    return FACTS[seam].model_validate({name: value() if callable(value) else value for name, value in found.items()})


BASES: dict[str, type[Plugin]] = {
    "workload": Workload, "engine": Engine, "comm": Comm, "precision": Precision, "optimizer": Optimizer,
    "launcher": Launcher, "preconditioner": Preconditioner, "measurement": Measurement,
}
"""Seam of a trial -> the class that its plug-ins derive from."""


class StandIn(Plugin):
    """A plug-in with the options that the record has."""

    shown: ClassVar[str]
    """The label under which the record shows the plug-in."""
    absence: ClassVar[str]
    """The sentence that says what is not installed."""


def stand_in(seam: str, options: Mapping[str, Any], facts: Facts, shown: str, absence: str) -> Plugin:
    """Return the stand-in of a plug-in of `seam`: whatever would run raises `UsageError` with `absence`.

    Raises:
        ValidationError: the options lack one that the seam requires.
    """
    base = BASES[seam]
    # A computed fact is a property or a method of the base, a stated one a class attribute.
    body: dict[str, Any] = {name: _refusal(absence) for name in getattr(base, "__abstractmethods__", ())}
    body |= {name: _fact(vars(base).get(name), value) for name, value in facts}
    body |= {"model_config": ConfigDict(extra="allow"), "shown": shown, "absence": absence, "__module__": __name__}
    made: type[Plugin] = new_class(f"Absent{base.__name__}", (StandIn, base), {}, lambda space: space.update(body))
    return made.model_validate(dict(options))


def _refusal(absence: str) -> Callable[..., Any]:
    def refuse(*_: object, **__: object) -> Any:
        raise UsageError(absence)

    return refuse


def _fact(declared: object, value: Any) -> Any:
    if isinstance(declared, property):
        return property(lambda _: value)
    return (lambda _: value) if callable(declared) else value


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
    def _of_its_plugin(self) -> RecordedPlugin:
        known = FACTS[self.seam].model_validate(self.facts)
        object.__setattr__(self, "facts", known.model_dump(mode="json"))
        if not is_label(self.shown, self.kind, self.options):
            raise ValueError("shown: states other options than the plug-in has")
        return self

    def plugin(self) -> Plugin:
        """Return the stand-in for it."""
        if is_file_kind(self.kind):
            missing = (f"{self.seam} {self.kind!r} is a class from a file, whose source the record holds (sha256 "
                       f"{self.code[:16]}); reading a record runs none of it")
        else:
            came = f" (it came with {self.distribution})" if self.distribution else ""
            missing = (f"{self.seam} {self.kind!r} is not installed here as the record describes it{came}; the record "
                       "can be read, verified and compared, but not run")
        facts = FACTS[self.seam].model_validate(self.facts)
        return stand_in(self.seam, self.options, facts, self.shown, missing)


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
