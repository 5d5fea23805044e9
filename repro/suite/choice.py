"""A plug-in chosen in a suite: its name and its complete options."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, Field, SerializeAsAny, ValidationError, model_serializer

from repro.core import registry
from repro.core.errors import UnknownName
from repro.core.frozen import Frozen
from repro.seams.plugin import Plugin
from repro.suite.field_problem import FieldProblem, as_text, describe_error, reject_booleans

P = TypeVar("P", bound=Plugin)


class Choice(Frozen):
    """A plug-in by name with its complete options (defaults filled in)."""

    seam: str = Field(exclude=True)
    kind: str
    plugin: SerializeAsAny[Plugin]

    @model_serializer
    def _flat(self) -> dict[str, Any]:
        return {"kind": self.kind, **self.plugin.model_dump(mode="json")}

    def get(self, cls: type[P]) -> P:
        """Return the plug-in as the class that its seam promises."""
        assert isinstance(self.plugin, cls), f"{self.seam} {self.kind} is no {cls.__name__}"
        return self.plugin

    @property
    def label(self) -> str:
        """The name, the options that differ from their defaults, and those that are always shown."""
        return self.label_without(())

    def label_without(self, names: Collection[str]) -> str:
        """Return the label without some options."""
        changed = self.plugin.model_dump(mode="json", exclude_defaults=True)
        changed |= self.plugin.model_dump(mode="json", include=set(self.plugin.always_shown))
        options = ", ".join(f"{key}={as_text(value)}" for key, value in sorted(changed.items()) if key not in names)
        return f"{self.kind} ({options})" if options else self.kind


def parse_choice(seam: str, value: Any) -> Any:
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
    try:
        cls = registry.load(seam, data["kind"])
    except UnknownName as error:
        raise FieldProblem(str(error), () if isinstance(value, str) else ("kind",)) from error
    reject_booleans(cls, options)
    try:
        return Choice.model_construct(seam=seam, kind=data["kind"], plugin=cls.model_validate(options))
    except ValidationError as error:
        problem, path = describe_error(error, cls)
        raise FieldProblem(problem, path) from error


WorkloadChoice = Annotated[Choice, BeforeValidator(partial(parse_choice, "workload"))]
EngineChoice = Annotated[Choice, BeforeValidator(partial(parse_choice, "engine"))]
CommChoice = Annotated[Choice, BeforeValidator(partial(parse_choice, "comm"))]
PrecisionChoice = Annotated[Choice, BeforeValidator(partial(parse_choice, "precision"))]
OptimizerChoice = Annotated[Choice, BeforeValidator(partial(parse_choice, "optimizer"))]
LauncherChoice = Annotated[Choice, BeforeValidator(partial(parse_choice, "launcher"))]
