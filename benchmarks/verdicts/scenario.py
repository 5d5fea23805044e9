"""A scenario: how its experiments are simulated and judged, which answers are wrong, and the rate allowed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from benchmarks.verdicts.experiment import CURVES_FROM, Experiment, SimulatedRun, made_plan, simulated
from benchmarks.verdicts.screen import ALPHA, DISAGREE, clear_difference, is_open, paired_p
from repro.compare import compare
from repro.compare.design.sequential import stages, take_look

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


@dataclass(frozen=True, slots=True)
class Scenario:
    """One cell of the table."""

    name: str
    truth: str
    judge: Callable[[np.random.Generator, bool], Judged]
    """Simulate one experiment; True: without the short cut, and compare both."""
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


def single_run(
    name: str, design: Experiment, relative: float | None = RELATIVE, least: float | None = None
) -> Scenario:
    """Return the scenario of one run of this design, judged by its primary contrast."""

    def judge(generator: np.random.Generator, checked: bool) -> Judged:
        run = simulated(design, generator)
        quick = None if design.drift else _quick(run)
        word = verdict(run) if quick is None or checked else quick
        p = paired_p(run.logs)
        return Judged(DISAGREE if quick not in (None, word) else word, None if p is None else p <= ALPHA)

    if design.ratio == 1:
        return Scenario(name, "equal", judge, wrong=DIFFERENT)
    right, wrong = ("slower", "faster") if design.ratio > 1 else ("faster", "slower")
    return Scenario(name, f"ratio {design.ratio:.4g}", judge, frozenset({wrong}), frozenset({right}), relative, least)


def wrongly_same(name: str, design: Experiment, relative: float | None = None) -> Scenario:
    """Return the scenario of a true difference of at least the margin, of which `same` would be wrong."""
    return replace(single_run(name, design, relative), wrong=frozenset({"same"}))


def verdict(run: SimulatedRun) -> str:
    """Return the verdict of the primary contrast."""
    return next(item for item in compare(run.plan, run.results) if item.primary).verdict


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
