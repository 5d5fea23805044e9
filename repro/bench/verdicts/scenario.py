"""A scenario: how its experiments are simulated and judged, which answers are wrong, and the rate allowed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from repro.bench.verdicts.experiment import Experiment, paired_p, simulated
from repro.compare import compare

ALPHA = 0.05
RELATIVE = 0.9
DIFFERENT = frozenset({"faster", "slower"})


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
    judge: Callable[[np.random.Generator], Judged]
    wrong: frozenset[str] = frozenset()
    """Answers that the truth makes wrong: at most 5 % of all."""
    right: frozenset[str] = frozenset()
    """Answers that find the truth."""
    relative: float | None = None
    """Smallest power relative to the paired t test's that is promised; None: that test is not valid here."""
    least: float | None = None
    """Smallest share of right answers that is promised."""
    most: float | None = None


def single_run(
    name: str, design: Experiment, relative: float | None = RELATIVE, least: float | None = None
) -> Scenario:
    """Return the scenario of one run of this design, judged by its primary contrast."""

    def judge(generator: np.random.Generator) -> Judged:
        plan, results = simulated(design, generator)
        found = next(item for item in compare(plan, results) if item.primary)
        p = paired_p(plan, results)
        return Judged(found.verdict, None if p is None else p <= ALPHA)

    if design.ratio == 1:
        return Scenario(name, "equal", judge, wrong=DIFFERENT)
    right, wrong = ("slower", "faster") if design.ratio > 1 else ("faster", "slower")
    return Scenario(name, f"ratio {design.ratio:g}", judge, frozenset({wrong}), frozenset({right}), relative, least)


def wrongly_same(name: str, design: Experiment) -> Scenario:
    """Return the scenario of a true difference of at least the margin, of which `same` would be wrong."""
    scenario = single_run(name, design, relative=None)
    return Scenario(scenario.name, scenario.truth, scenario.judge, wrong=frozenset({"same"}), right=scenario.right)
