"""The stand-in of a plug-in that is not installed here: it has the facts that a record stores, and trains nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import new_class
from typing import Any, ClassVar

from pydantic import ConfigDict

from repro.core.errors import UsageError
from repro.seams.launching import Launcher
from repro.seams.measurement import Measurement
from repro.seams.plugin import Plugin
from repro.seams.training import Comm, Engine, Optimizer, Precision, Preconditioner, Workload
from repro.suite.choices.facts import Facts

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
    body |= {name: _fact(vars(base).get(name), getattr(facts, name)) for name in type(facts).model_fields}
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
