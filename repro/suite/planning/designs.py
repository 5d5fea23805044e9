"""The design of a plan: as far as its cells can run here, and what its trials can be asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from repro.core import pattern
from repro.suite.design import PlanKind, judges_of_all
from repro.suite.field_problem import Problem
from repro.suite.metrics import DEFAULT_OF_A_CONTEST, METRICS, OF_MEASUREMENTS
from repro.suite.model import Suite
from repro.suite.planning.cell import Cell
from repro.suite.sequential import Design


def planned_design(suite: Suite, cells: Sequence[Cell], kind: PlanKind = "suite") -> Design:
    """Return the design of the cells of a suite that run here.

    Without one of the cells of its primary contrast a sequential design has the fixed repeats of its first look.
    """
    judges = judges_of_all({cell.choices.stop.judges for cell in cells})
    if suite.sequential is None or kind != "suite":
        return Design(judges=judges, repeats=suite.seeds, scored=kind != "tuning")
    data = [cell.choices.stated() for cell in cells]
    sides = (suite.primary.candidate, suite.primary.baseline) if suite.primary is not None else ()
    judged = [next((place for place, item in enumerate(data) if pattern.matches(item, side)), None) for side in sides]
    places = tuple(place for place in judged if place is not None)
    if len(places) < 2:
        return Design(judges=judges, repeats=suite.design.common)
    return suite.design_of(judges, places)


def without_primary(suite: Suite) -> dict[str, Any]:
    """Return the changes of a suite that loses its primary contrast: nothing is left to stop for."""
    return {"primary": None} | ({"sequential": None, "seeds": suite.design.common} if suite.sequential else {})


WITHOUT_TARGET = tuple(spec.name for spec in METRICS.values() if spec.without_target and spec.of != "operations")
"""Metrics that can be declared under design fixed_steps."""

SHARED = ("design", "metric", "target", "direction", "alpha")
"""Fields of `stop` that all cells of a contest share."""


def check_designs(suite: Suite, cells: Sequence[Cell], problem: Problem) -> None:
    """Refuse a suite that asks trials for what their design does not give.

    Raises:
        SuiteError: cells with and without a target or of several claims, or a declared metric, horizon or rule that
            these trials do not have.
    """
    if any(not cell.choices.trains for cell in cells):
        _check_measurements(suite, cells, problem)
        return
    if METRICS[suite.metric].of == "operations":
        raise problem(f"{suite.metric} is a figure of trials of kind measurement", ("primary", "metric"))
    wordless = (cell for cell in cells if cell.choices.quality.tokens_per_sample is None)
    if suite.metric == "tokens" and (cell := next(wordless, None)):
        raise problem(f"workload {cell.choices.task} has no tokens; train_throughput counts its samples",
                      ("primary", "metric"))
    with_target = {cell.choices.stop.has_target for cell in cells}
    if len(with_target) > 1:
        raise problem("fixed_steps cannot be compared with designs that have a target; use a separate suite",
                      ("trial", "stop", "design"))
    if True in with_target:
        _check_contest(suite, cells, problem)
        return
    if not METRICS[suite.metric].without_target:
        raise problem(f"{suite.metric} is not a figure of training alone, which design fixed_steps asks for; use one "
                      f"of: {', '.join(WITHOUT_TARGET)}", ("primary", "metric"))
    if suite.horizon is not None:
        raise problem("design fixed_steps has no target that a trial could miss; remove it", ("horizon",))


def _check_measurements(suite: Suite, cells: Sequence[Cell], problem: Problem) -> None:
    """Refuse measurements in one suite with trainings, and what only a training has."""
    if other := next((cell for cell in cells if cell.choices.trains), None):
        raise problem(f"{other.label} is not a measurement; use a separate suite", ("trial", "kind"))
    items = {cell.choices.quality.unit for cell in cells}
    if suite.metric == "operation_throughput" and len(items) > 1:
        raise problem(f"{' and '.join(sorted(items))} a second cannot be compared; use operation_time",
                      ("primary", "metric"))
    if METRICS[suite.metric].of == "training":
        raise problem(f"{suite.metric} is a figure of training; use one of: {', '.join(OF_MEASUREMENTS)}",
                      ("primary", "metric"))
    if suite.horizon is not None:
        raise problem("a measurement has no target that a trial could miss; remove it", ("horizon",))


def _check_contest(suite: Suite, cells: Sequence[Cell], problem: Problem) -> None:
    """Refuse a contest that could choose among its runs, or whose cells make different claims."""
    stops = [cell.choices.stop for cell in cells]
    if not any(stop.judges == "mean" for stop in stops):
        if METRICS[suite.metric].at_end:
            raise problem(f"{suite.metric} is a time to the end of a fixed budget, which only design contest has; use "
                          "tta_wall, or stop.design: contest", ("primary", "metric"))
        return
    for name in SHARED:
        values = list(dict.fromkeys(getattr(stop, name, None) for stop in stops))
        if len(values) > 1:
            raise problem(f"the cells of a contest make one claim, but stop.{name} is "
                          f"{' or '.join(map(str, values))}; use separate suites", ("trial", "stop", name))
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
