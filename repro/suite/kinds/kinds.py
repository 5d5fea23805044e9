"""The table of the kinds of trial: `kind:` in a suite's `trial:` -> the class that its fields are parsed as."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import Discriminator, Tag

from repro.core import pattern, registry
from repro.core.errors import nearest
from repro.suite.field_problem import FieldProblem
from repro.suite.kinds.program import ProgramConfig, ProgramStop
from repro.suite.kinds.stop import Repeats, Stop
from repro.suite.kinds.training import TrainingConfig
from repro.suite.kinds.trial_config import TrialConfig
from repro.suite.metrics import DEFAULT_TO_THE_END

DEFAULT, PROGRAM = "training", "program"
KINDS: dict[str, type[TrialConfig]] = {DEFAULT: TrainingConfig, PROGRAM: ProgramConfig, **registry.parts("kind")}
"""Every kind. `repro.suite.kinds.trial_config` says how to add one."""


def config_class(data: Mapping[str, Any]) -> type[TrialConfig]:
    """Return the class of the kind that `data` names, also by `engine: {kind: program}`; training if it names none.

    Raises:
        FieldProblem: no such kind.
    """
    return KINDS[_kind(data)]


def written_kinds(data: dict[str, Any]) -> dict[str, Any]:
    """Return a trial as written, with plug-ins given by name as mappings, so that patterns read both alike.

    Raises:
        FieldProblem: there is no such kind of trial.
    """
    seams = config_class(data).plugin_fields
    return {key: {"kind": value} if key in seams and isinstance(value, str) else value for key, value in data.items()}


def default_metric(trial: Mapping[str, Any]) -> str:
    """Return the metric of the kind that a suite's raw `trial` names; "": it follows from the design."""
    if pattern.get(trial, "stop.design") == "end":
        return DEFAULT_TO_THE_END
    kind = trial.get("kind")
    return KINDS[kind].default_metric if isinstance(kind, str) and kind in KINDS else ""


def _kind(data: Any) -> str:
    if isinstance(data, TrialConfig):
        return str(data.kind)
    if not isinstance(data, Mapping):
        return DEFAULT
    engine = data.get("engine")
    by_engine = (engine.get("kind") if isinstance(engine, Mapping) else engine) == PROGRAM
    if isinstance(engine, Mapping) and isinstance(engine.get("run"), list) and not by_engine:
        raise FieldProblem("an engine with a command (run) is a program: write kind: program", ("engine", "kind"))
    kind = data.get("kind", PROGRAM if by_engine else DEFAULT)
    if isinstance(kind, str) and kind in KINDS:
        return kind
    raise FieldProblem(f"no kind of trial named {str(kind)[:60]!r}{nearest(str(kind), list(KINDS))}; kinds: "
                       f"{', '.join(KINDS)}", ("kind",))


if TYPE_CHECKING:
    AnyTrialConfig = TrainingConfig | ProgramConfig | TrialConfig
else:
    AnyTrialConfig = Annotated[
        Union[tuple(Annotated[found, Tag(name)] for name, found in KINDS.items())],  # noqa: UP007  # of a tuple
        Discriminator(_kind)]
"""A configuration of any kind."""
AnyStop = Stop | ProgramStop | Repeats
"""The end of a trial of any kind."""
