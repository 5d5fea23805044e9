"""Checks of a suite whose trials have no target: all its cells, and what its verdicts may be about."""

from __future__ import annotations

from collections.abc import Sequence

from repro.suite.cell import Cell
from repro.suite.contest import check_contest
from repro.suite.matrix import Problem
from repro.suite.metrics import METRICS
from repro.suite.model import Suite

WITHOUT_TARGET = tuple(spec.name for spec in METRICS.values() if spec.without_target)
"""Metrics that can be declared under design fixed_steps."""


def check_designs(suite: Suite, cells: Sequence[Cell], problem: Problem) -> None:
    """Refuse a suite that asks trials without a target for what only a target gives.

    Raises:
        SuiteError: cells with and without a target, or a declared metric or horizon that these trials do not have.
    """
    if suite.metric == "tokens" and (cell := next((cell for cell in cells if not _has_tokens(cell)), None)):
        raise problem(f"workload {cell.choices.task} has no tokens; train_throughput counts its samples",
                      ("primary", "metric"))
    with_target = {cell.choices.stop.has_target for cell in cells}
    if len(with_target) > 1:
        raise problem("fixed_steps cannot be compared with designs that have a target; make it a suite of its own",
                      ("trial", "stop", "design"))
    if True in with_target:
        check_contest(suite, cells, problem)
        return
    if not METRICS[suite.metric].without_target:
        raise problem(f"{suite.metric} is not a figure of training alone, which design fixed_steps asks for; use one "
                      f"of: {', '.join(WITHOUT_TARGET)}", ("primary", "metric"))
    if suite.horizon is not None:
        raise problem("design fixed_steps has no target that a trial could miss; remove it", ("horizon",))


def _has_tokens(cell: Cell) -> bool:
    return cell.choices.quality.tokens_per_sample is not None
