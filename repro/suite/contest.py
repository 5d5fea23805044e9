"""The design `contest`: a fixed budget, and a claim about the mean quality at the end over all declared runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from repro.core import pattern
from repro.suite.field_problem import FieldProblem
from repro.suite.metrics import DEFAULT_OF_A_CONTEST, METRICS

if TYPE_CHECKING:
    from repro.suite.cell import Cell
    from repro.suite.matrix import Problem
    from repro.suite.model import Suite

CONTEST = "contest"
ALPHA = 0.01
"""Level of the claim of quality, if a suite says nothing else."""
CONTEST_MARGIN = 0.005
"""Margin of a contest, if a suite says nothing else: records improve by 1 to 2 %, which 5 % would call the same."""
SHARED = ("design", "metric", "target", "direction", "alpha")
"""Fields of `stop` that all cells of a contest share."""


def is_contest(suite: Mapping[str, Any]) -> bool:
    """Return True if the raw data of a suite name the design for some cell."""
    trial, matrix = suite.get("trial"), suite.get("matrix")
    found = [pattern.get(trial, "stop.design")] if isinstance(trial, Mapping) else []
    levels = matrix.get("stop.design") if isinstance(matrix, Mapping) else None
    return CONTEST in (*found, *(levels if isinstance(levels, list | tuple) else ()))


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
    if design != CONTEST and alpha != ALPHA:
        raise FieldProblem(f"only design contest tests a mean, not {design}; remove it", ("alpha",))
    if design == CONTEST and confirm_evals != 1:
        raise FieldProblem("a contest judges the last evaluation of a run alone; remove it", ("confirm_evals",))


def check_contest(suite: Suite, cells: Sequence[Cell], problem: Problem) -> None:
    """Refuse a contest that could choose among its runs, or whose cells make different claims.

    Raises:
        SuiteError: cells of several claims, looks, reruns, main effects, or a metric that a contest does not have.
    """
    stops = [cell.choices.stop for cell in cells]
    if not any(stop.design == CONTEST for stop in stops):
        if METRICS[suite.metric].at_end:
            raise problem(f"{suite.metric} is a time to the end of a fixed budget, which only design contest has; use "
                          "tta_wall, or stop.design: contest", ("primary", "metric"))
        return
    for name in SHARED:
        values = list(dict.fromkeys(getattr(stop, name, None) for stop in stops))
        if len(values) > 1:
            raise problem(f"the cells of a contest make one claim, but stop.{name} is "
                          f"{' or '.join(map(str, values))}; make it a suite of its own", ("trial", "stop", name))
    if suite.sequential is not None:
        raise problem("the runs of a contest are declared beforehand, so no look may end it early; remove it, or use "
                      "stop.design: fixed_budget", ("sequential",))
    if suite.on_failure in ("rerun", "resume_from_checkpoint"):
        raise problem("a contest counts every declared run once, also one that failed; use continue or stop",
                      ("on_failure",))
    if suite.contrasts:
        raise problem("a contest makes its claims about cells, not about levels of factors; remove it", ("contrasts",))
    if METRICS[suite.metric].to_target:
        raise problem(f"{suite.metric} ends at a target, and the runs of a contest go on to their end; use "
                      f"{DEFAULT_OF_A_CONTEST}", ("primary", "metric"))
    if suite.horizon is not None:
        raise problem("no run of a contest can miss its target: only the mean of all is judged; remove it",
                      ("horizon",))
