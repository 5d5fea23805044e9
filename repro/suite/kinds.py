"""The table of the kinds of trial: `kind:` in a suite's `trial:` -> the class that its fields are parsed as."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator

from repro.core.errors import nearest
from repro.suite.field_problem import FieldProblem
from repro.suite.program import ProgramConfig
from repro.suite.training import TrainingConfig

DEFAULT = "training"
KINDS: dict[str, type[TrainingConfig] | type[ProgramConfig]] = {"training": TrainingConfig, "program": ProgramConfig}
"""Every kind that is built. `repro.suite.trial_config` says how to add one."""
NOT_BUILT = {
    "program": "a command of yours",
    "measurement": "a part of a training, such as an input pipeline or one layer",
}
"""Kinds that a suite may come to name, and what a trial of them runs."""


def config_class(data: Mapping[str, Any]) -> type[TrainingConfig] | type[ProgramConfig]:
    """Return the class of the kind that `data` names; training if it names none.

    Raises:
        FieldProblem: no such kind, or one that is not built.
    """
    kind = data.get("kind", DEFAULT)
    if isinstance(kind, str) and kind in KINDS:
        return KINDS[kind]
    built = ", ".join(KINDS)
    if isinstance(kind, str) and kind in NOT_BUILT:
        raise FieldProblem(f"kind {kind!r} ({NOT_BUILT[kind]}) is not built in this version of repro; kinds that are "
                           f"built: {built}", ("kind",))
    raise FieldProblem(f"no kind of trial named {str(kind)[:60]!r}{nearest(str(kind), list(KINDS))}; kinds that are "
                       f"built: {built}", ("kind",))


def _of_a_built_kind(data: Any) -> Any:
    if isinstance(data, Mapping):
        config_class(data)
    return data


AnyTrialConfig = Annotated[TrainingConfig | ProgramConfig, BeforeValidator(_of_a_built_kind)]
"""A configuration of any kind. With a second kind: a union of their classes, discriminated by `kind`."""
