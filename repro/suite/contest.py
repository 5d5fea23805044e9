"""The design `contest`: a fixed budget, and a claim about the mean quality at the end over all declared runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from repro.core import pattern
from repro.suite.field_problem import FieldProblem
from repro.suite.metrics import DEFAULT_OF_A_CONTEST

ALPHA = 0.01
"""Level of the claim of quality, if a suite says nothing else."""
CONTEST_MARGIN = 0.005
"""Margin of a contest, if a suite says nothing else: records improve by 1 to 2 %, which 5 % would call the same."""


def is_contest(suite: Mapping[str, Any]) -> bool:
    """Return True if the raw data of a suite name the design for some cell."""
    trial, matrix = suite.get("trial"), suite.get("matrix")
    found = [pattern.get(trial, "stop.design")] if isinstance(trial, Mapping) else []
    levels = matrix.get("stop.design") if isinstance(matrix, Mapping) else None
    return "contest" in (*found, *(levels if isinstance(levels, list | tuple) else ()))


def with_defaults(data: Any) -> Any:
    """Return raw data of a suite in which a contest has the margin and the metric of one."""
    if not isinstance(data, Mapping) or not is_contest(data):
        return data
    found = {"margin": CONTEST_MARGIN, **data}
    if isinstance(primary := found.get("primary"), Mapping):
        found["primary"] = {"metric": DEFAULT_OF_A_CONTEST, **primary}
    return found


def check_stop(design: str, alpha: float, confirm_evals: int) -> None:
    """Check the fields of a stop rule that depend on whether it is a contest's.

    Raises:
        FieldProblem: a level without a contest, or confirming evaluations with one.
    """
    if design != "contest" and alpha != ALPHA:
        raise FieldProblem(f"only design contest tests a mean, not {design}; remove it", ("alpha",))
    if design == "contest" and confirm_evals != 1:
        raise FieldProblem("a contest judges the last evaluation of a run alone; remove it", ("confirm_evals",))
