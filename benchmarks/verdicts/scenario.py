"""A scenario: how its experiments are simulated and judged, which answers are wrong, and the rate allowed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from benchmarks.verdicts.experiment import CURVES_FROM, Experiment, SimulatedRun, made_plan, simulated
from benchmarks.verdicts.screen import ALPHA, DISAGREE, clear_difference, is_open, paired_p
from repro.compare import Comparison, compare
from repro.compare.design.sequential import stages, take_look
from repro.record.folder.execution import Execution
from repro.record.result.results import Result
from repro.suite.planning.plan import Plan

RELATIVE = 0.9
SHOWN = 0.0
"""Power relative to the paired t test's that is shown and not promised."""
DIFFERENT = frozenset({"faster", "slower"})
OPEN = "inconclusive"


class Judged(NamedTuple):
    """The answer to one experiment."""

    word: str
    """A verdict, or another word of the scenario."""
    paired_t: bool | None = None
    """The paired t test alone finds a difference; None: it has no p, or the scenario does not ask."""


Judge = Callable[[np.random.Generator, bool], Judged]
"""Simulates one experiment; True: without the short cut, and compares both."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One cell of the table."""

    name: str
    truth: str
    judge: Judge
    wrong: frozenset[str] = frozenset()
    """Answers that the truth makes wrong: at most `rate` of all."""
    right: frozenset[str] = frozenset()
    """Answers that find the truth."""
    relative: float | None = None
    """Smallest power relative to the paired t test's that is promised; None: that test is not valid here."""
    least: float | None = None
    """Smallest share of right answers that is promised."""
    most: float | None = None
    rate: float = ALPHA
    """Largest share of wrong answers."""


def of_ratio(
    name: str, ratio: float, judge: Judge, relative: float | None = None, least: float | None = None,
    rate: float = ALPHA,
) -> Scenario:
    """Return the scenario of a true ratio: of equal cells, which alone have a `rate`, or of different ones."""
    if ratio == 1:
        return Scenario(name, "equal", judge, wrong=DIFFERENT, rate=rate)
    right, wrong = ("slower", "faster") if ratio > 1 else ("faster", "slower")
    return Scenario(name, f"ratio {ratio:.4g}", judge, frozenset({wrong}), frozenset({right}), relative, least)


def single_run(
    name: str, design: Experiment, relative: float | None = RELATIVE, least: float | None = None
) -> Scenario:
    """Return the scenario of one run of this design, judged by its primary contrast."""

    def judge(generator: np.random.Generator, checked: bool) -> Judged:
        run = simulated(design, generator)
        quick = None if design.drift else _quick(run)
        word = primary(run.plan, run.results).verdict if quick is None or checked else quick
        p = paired_p(run.logs)
        return Judged(DISAGREE if quick not in (None, word) else word, None if p is None else p <= ALPHA)

    return of_ratio(name, design.ratio, judge, relative, least)


def wrongly_same(name: str, design: Experiment, relative: float | None = None) -> Scenario:
    """Return the scenario of a true difference of at least the margin, of which `same` would be wrong."""
    return replace(single_run(name, design, relative), wrong=frozenset({"same"}))


def primary(plan: Plan, results: Sequence[Result], execution: Execution | None = None) -> Comparison:
    """Return the primary contrast, compared."""
    return next(item for item in compare(plan, results, execution=execution) if item.primary)


def _quick(run: SimulatedRun) -> str | None:
    """Return the verdict if a short cut knows it. Of a sequential run only the looks that may settle it are taken."""
    fine = max(run.design.grids) < CURVES_FROM
    if not run.design.sequential:
        return OPEN if is_open(run.logs) else clear_difference(run.logs) if fine else None
    for stage in stages(made_plan(run.design.cells, run.design.pairs, run.design.sequential)):
        if is_open(run.logs[:stage.n], stage.difference, stage.same):
            continue
        if fine and (word := clear_difference(run.logs[:stage.n], stage.difference)):
            return word
        taken = take_look(run.plan, run.results, stage)
        if taken is None or taken.ends:
            return taken.found.verdict if taken else None
    return OPEN
