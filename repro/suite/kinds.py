"""The table of the kinds of trial: `kind:` in a suite's `trial:` -> the class that its fields are parsed as."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Discriminator, Tag

from repro.core.errors import nearest
from repro.suite.field_problem import FieldProblem
from repro.suite.program import ProgramConfig
from repro.suite.training import TrainingConfig

DEFAULT, PROGRAM = "training", "program"
KINDS: dict[str, type[TrainingConfig] | type[ProgramConfig]] = {DEFAULT: TrainingConfig, PROGRAM: ProgramConfig}
"""Every kind that is built. `repro.suite.trial_config` says how to add one."""
NOT_BUILT = {"measurement": "a part of a training, such as an input pipeline or one layer"}
"""Kinds that a suite may come to name, and what a trial of them runs."""


def config_class(data: Mapping[str, Any]) -> type[TrainingConfig] | type[ProgramConfig]:
    """Return the class of the kind that `data` names, also by `engine: {kind: program}`; training if it names none.

    Raises:
        FieldProblem: no such kind, or one that is not built.
    """
    return KINDS[_kind(data)]


def _kind(data: Any) -> str:
    if isinstance(data, TrainingConfig | ProgramConfig):
        return str(data.kind)
    if not isinstance(data, Mapping):
        return DEFAULT
    engine = data.get("engine")
    by_engine = isinstance(engine, Mapping) and engine.get("kind") == PROGRAM
    kind = data.get("kind", PROGRAM if by_engine else DEFAULT)
    if isinstance(kind, str) and kind in KINDS:
        return kind
    built = ", ".join(KINDS)
    if isinstance(kind, str) and kind in NOT_BUILT:
        raise FieldProblem(f"kind {kind!r} ({NOT_BUILT[kind]}) is not built in this version of repro; kinds that are "
                           f"built: {built}", ("kind",))
    raise FieldProblem(f"no kind of trial named {str(kind)[:60]!r}{nearest(str(kind), list(KINDS))}; kinds that are "
                       f"built: {built}", ("kind",))


AnyTrialConfig = Annotated[
    Annotated[TrainingConfig, Tag(DEFAULT)] | Annotated[ProgramConfig, Tag(PROGRAM)], Discriminator(_kind)]
"""A configuration of any kind."""
