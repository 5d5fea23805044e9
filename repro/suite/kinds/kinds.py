"""The table of the kinds of trial: `kind:` in a suite's `trial:` -> the class that its fields are parsed as."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Discriminator, Tag

from repro.core.errors import nearest
from repro.suite.field_problem import FieldProblem
from repro.suite.kinds.measurement import KIND, MeasurementConfig, Repeats
from repro.suite.kinds.program import ProgramConfig, ProgramStop
from repro.suite.kinds.stop import Stop
from repro.suite.kinds.training import TrainingConfig

DEFAULT, PROGRAM, MEASUREMENT = "training", "program", KIND
ConfigClass = type[TrainingConfig] | type[ProgramConfig] | type[MeasurementConfig]
KINDS: dict[str, ConfigClass] = {DEFAULT: TrainingConfig, PROGRAM: ProgramConfig, MEASUREMENT: MeasurementConfig}
"""Every kind. `repro.suite.kinds.trial_config` says how to add one."""


def config_class(data: Mapping[str, Any]) -> ConfigClass:
    """Return the class of the kind that `data` names, also by `engine: {kind: program}`; training if it names none.

    Raises:
        FieldProblem: no such kind.
    """
    return KINDS[_kind(data)]


def _kind(data: Any) -> str:
    if isinstance(data, TrainingConfig | ProgramConfig | MeasurementConfig):
        return str(data.kind)
    if not isinstance(data, Mapping):
        return DEFAULT
    engine = data.get("engine")
    by_engine = isinstance(engine, Mapping) and engine.get("kind") == PROGRAM
    kind = data.get("kind", PROGRAM if by_engine else DEFAULT)
    if isinstance(kind, str) and kind in KINDS:
        return kind
    raise FieldProblem(f"no kind of trial named {str(kind)[:60]!r}{nearest(str(kind), list(KINDS))}; kinds: "
                       f"{', '.join(KINDS)}", ("kind",))


AnyTrialConfig = Annotated[
    Annotated[TrainingConfig, Tag(DEFAULT)] | Annotated[ProgramConfig, Tag(PROGRAM)]
    | Annotated[MeasurementConfig, Tag(MEASUREMENT)], Discriminator(_kind)]
"""A configuration of any kind."""
AnyStop = Stop | ProgramStop | Repeats
"""The end of a trial of any kind."""
