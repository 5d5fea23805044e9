"""Reproductions: a record and a second execution of its claim, with an answer for what is true of the change.

The times come from numpy alone: a level of the session, an interaction of session and cell, and noise of each trial.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.verdicts.scenario import Judged, Scenario
from repro.stats.replication import (
    LEAST_PAIRS,
    POWER,
    change,
    mean_log,
    pairs_for_margin,
    replication_power,
    supported_margin,
)

EDGE = math.inf
"""A change of just the margin."""


@dataclass(frozen=True, slots=True)
class Execution:
    """The truth of a record and of its second execution."""

    pairs: int
    spread: float
    """Standard deviation of the log time of a trial."""
    apart: float = 0.03
    """Standard deviation of the log speed of sessions."""
    interaction: float = 0.0
    declared: float = 0.0
    margin: float | None = None
    """None: the smallest that the record supports with as many new pairs."""
    change: float = 0.0
    """True change of the log ratio; `EDGE`: of the margin."""


def executed(design: Execution, generator: np.random.Generator, pairs: int, true: float) -> list[float]:
    """Return the log ratios of the pairs of one session."""
    level, own = generator.normal(0, design.apart), generator.normal(0, design.interaction)
    candidate, baseline = generator.normal(level, design.spread, (2, pairs))
    return list(candidate - baseline + true + own)


def answer(design: Execution, generator: np.random.Generator) -> str:
    """Return the answer to one reproduction whose user follows what is announced; "refused": nothing ran."""
    before = mean_log(executed(design, generator, design.pairs, 0.3))
    pairs, margin = design.pairs, design.margin
    if margin is None:
        margin = supported_margin(before, pairs, design.declared)
    elif (needed := pairs_for_margin(before, margin, design.declared)) is not None and needed <= 4 * design.pairs:
        pairs = max(pairs, needed)
    if replication_power(before, pairs, margin, design.declared) < POWER or pairs < LEAST_PAIRS:
        return "refused"
    true = math.log1p(margin) * generator.choice((-1, 1)) if design.change == EDGE else design.change
    after = mean_log(executed(design, generator, pairs, 0.3 + true))
    found = change(before, after, margin, design.declared)
    if found.is_beyond:
        return "not reproduced"
    return "reproduced" if found.is_within else "inconclusive"


def reproductions() -> Iterator[Scenario]:
    """Yield equal ratios, changes of the margin and large ones, with and without an interaction."""
    for pairs, spread in ((7, 0.1), (10, 0.01), (10, 0.05), (20, 0.1)):
        name = f"reproduce, {pairs} pairs, CV {spread:.0%}"
        equal = Execution(pairs, spread)
        yield _equal(name, equal)
        yield _edge(f"{name}, at the margin", Execution(pairs, spread, change=EDGE))
    yield _equal("reproduce, margin 5%, CV 2%", Execution(10, 0.02, margin=0.05))
    yield _edge("reproduce, margin 5%, CV 2%, at the margin", Execution(10, 0.02, margin=0.05, change=EDGE))
    yield _changed("reproduce, slowed by 30%, CV 5%", Execution(10, 0.05, change=math.log(1.3)))
    for own in (0.01, 0.03):
        yield _equal(f"reproduce, interaction {own:.0%} declared", Execution(10, 0.05, interaction=own, declared=own))
        yield _edge(f"reproduce, interaction {own:.0%} declared, at the margin",
                    Execution(10, 0.05, interaction=own, declared=own, change=EDGE))
        yield _shown(f"reproduce, interaction {own:.0%} undeclared", Execution(10, 0.02, interaction=own))


def _judge(name: str, truth: str, design: Execution, **promised: object) -> Scenario:
    def judge(generator: np.random.Generator, checked: bool) -> Judged:
        return Judged(answer(design, generator))

    return Scenario(name, truth, judge, **promised)  # type: ignore[arg-type]


def _equal(name: str, design: Execution) -> Scenario:
    return _judge(name, "equal", design, wrong=frozenset({"not reproduced"}), right=frozenset({"reproduced"}),
                  least=POWER)


def _edge(name: str, design: Execution) -> Scenario:
    return _judge(name, "margin", design, wrong=frozenset({"reproduced"}))


def _changed(name: str, design: Execution) -> Scenario:
    return _judge(name, "ratio 1.3", design, wrong=frozenset({"reproduced"}), right=frozenset({"not reproduced"}),
                  least=POWER)


def _shown(name: str, design: Execution) -> Scenario:
    """An interaction that nobody declared: its rate is shown, and not promised."""
    return _judge(name, "equal", design, right=frozenset({"reproduced"}))
