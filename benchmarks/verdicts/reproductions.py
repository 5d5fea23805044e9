"""Reproductions: a record and a second execution of its claim, with an answer for what is true of the change.

The times come from numpy alone: a level of the session, an interaction of session and cell, and noise of each trial.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.verdicts.scenario import Judged, Scenario
from repro import stats
from repro.bundle.claim import Found, shift_between
from repro.stats.replication import (
    ALPHA,
    POWER,
    MeanLog,
    change,
    looks_up_to,
    mean_log,
    pairs_for_margin,
    replication_power,
    supported_margin,
    two_sided,
)
from repro.stats.sequential import look_levels, median_unbiased

EDGE = math.inf
"""A change of just the margin."""


@dataclass(frozen=True, slots=True)
class Execution:
    """The truth of a record and of its second execution."""

    pairs: int
    spread: float
    """Standard deviation of the log time of a trial."""
    spread_up_to: float | None = None
    """Spreads differ between records, in equal shares of the log from `spread` to this; None: all have `spread`."""
    apart: float = 0.03
    """Standard deviation of the log speed of sessions."""
    interaction: float = 0.0
    declared: float = 0.0
    margin: float | None = None
    """None: the smallest that the record supports with as many new pairs."""
    seeds: float = 0.0
    """Standard deviation of what a seed does to the log ratio, in both executions."""
    true: float = 0.3
    """True log ratio of the record."""
    sequential: bool = False
    """The record ended at a look."""
    in_looks: bool = False
    """The second execution ends at the first look that answers."""
    change: float = 0.0
    """True change of the log ratio; `EDGE`: of the margin."""
    chosen: bool = False
    """Only records whose own p is at most 5 % are reproduced, as those are that somebody reports."""
    undecided: bool = False
    """It runs also where the record does not support the margin."""
    tries: int = 1
    """Second executions: the next one runs until one says "reproduced"."""


def executed(design: Execution, generator: np.random.Generator, own_seeds: np.ndarray, true: float) -> list[float]:
    """Return the log ratios of the pairs of one session."""
    pairs = len(own_seeds)
    level, own = generator.normal(0, design.apart), generator.normal(0, design.interaction)
    candidate, baseline = generator.normal(level, design.spread, (2, pairs))
    return list(candidate - baseline + true + own + own_seeds)


def answer(design: Execution, generator: np.random.Generator) -> str:
    """Return the answer to one reproduction whose record supports the margin, as is announced before it runs."""
    most, drawn = design.spread_up_to or design.spread, design
    while True:
        design = replace(drawn, spread=math.exp(generator.uniform(math.log(drawn.spread), math.log(most))))
        luck = generator.normal(0, design.seeds, MOST_TIMES * MOST_LOOKED)
        first = recorded(design, generator, luck)
        assert first.mean is not None
        pairs, margin = _announced(design, first.mean, len(first.logs))
        if design.chosen and two_sided(first.mean) > ALPHA:
            continue
        power = replication_power(first.mean, pairs, margin, design.declared, design.in_looks)
        if design.undecided or power >= POWER:
            break
    true = math.log1p(margin) * generator.choice((-1, 1)) if design.change == EDGE else design.change
    answers = [_judged_again(design, first, executed(design, generator, luck[:pairs], design.true + true), margin)
               for _ in range(design.tries)]
    return "reproduced" if "reproduced" in answers else answers[0]


def _judged_again(design: Execution, first: Found, logs: Sequence[float], margin: float) -> str:
    pairs = len(logs)
    for look in looks_up_to(pairs) if design.in_looks else (None,):
        moved = shift_between(first, _found(logs[:look.n if look else pairs]))
        assert moved is not None
        found = change(moved, margin, design.declared, look=look)
        if found.is_beyond:
            return "not reproduced"
        if found.is_within:
            return "reproduced"
    return "inconclusive"


def recorded(design: Execution, generator: np.random.Generator, luck: np.ndarray) -> Found:
    """Return a record: of a fixed number of pairs, or of a sequential design that ended at a look."""
    if not design.sequential:
        return _found(executed(design, generator, luck[:design.pairs], design.true))
    levels = look_levels(LOOKS, "power", 1.0)
    logs = executed(design, generator, luck[:LOOKS[-1]], design.true)
    end = next((level for level in levels
                if stats.paired_p(np.exp(logs[:level.n]).tolist(), [1.0] * level.n) <= level.difference), levels[-1])
    taken = [level for level in levels if level.n <= end.n]
    mean = median_unbiased(logs[:end.n], [level.n for level in taken], [level.difference for level in taken])
    return Found(MeanLog(mean.value, mean.error, mean.freedom), dict(enumerate(logs[:end.n])))


def _found(logs: Sequence[float]) -> Found:
    return Found(mean_log(logs), dict(enumerate(logs)))


LOOKS = (8, 12, 18, 27, 40)
MOST_LOOKED = 40
"""Pairs of a record at most."""
MOST_TIMES = 4
"""Pairs of a second execution, as a multiple of the record's."""


def _announced(design: Execution, before: MeanLog, pairs: int) -> tuple[int, float]:
    if design.margin is None:
        margin = supported_margin(before, pairs, design.declared, in_looks=design.in_looks)
        assert margin is not None
        return pairs, margin
    needed = pairs_for_margin(before, design.margin, design.declared, in_looks=design.in_looks) or 0
    return max(pairs, needed) if needed <= MOST_TIMES * pairs else pairs, design.margin


def reproductions() -> Iterator[Scenario]:
    """Yield equal ratios, changes of the margin and large ones, with and without an interaction."""
    for pairs, spread in ((7, 0.1), (10, 0.01), (10, 0.05), (20, 0.1)):
        name = f"reproduce, {pairs} pairs, CV {spread:.0%}"
        equal = Execution(pairs, spread)
        yield _equal(name, equal)
        yield _edge(f"{name}, at the margin", Execution(pairs, spread, change=EDGE))
    yield _equal("reproduce, margin 5%, CV 2%", Execution(10, 0.02, margin=0.05))
    yield _edge("reproduce, margin 5%, CV 2%, at the margin", Execution(10, 0.02, margin=0.05, change=EDGE))
    yield _equal("reproduce, spread of seeds 15%", Execution(7, 0.02, seeds=0.15))
    yield _edge("reproduce, spread of seeds 15%, at the margin", Execution(7, 0.02, seeds=0.15, change=EDGE))
    yield _equal("reproduce, margin 10%, more pairs than the record", Execution(10, 0.05, margin=0.1))
    yield _edge("reproduce, margin 10%, more pairs, at the margin", Execution(10, 0.05, margin=0.1, change=EDGE))
    stopped = Execution(8, 0.05, true=math.log(1.05), sequential=True)
    yield _equal("reproduce, a record that stopped at a look", stopped)
    yield _edge("reproduce, a record that stopped, at the margin", replace(stopped, change=EDGE))
    for pairs in (10, 20):
        looked = Execution(pairs, 0.05, in_looks=True)
        yield _equal(f"reproduce in looks, {pairs} pairs, CV 5%", looked)
        yield _edge(f"reproduce in looks, {pairs} pairs, CV 5%, at the margin", replace(looked, change=EDGE))
    for way, in_looks in (("", False), (" in looks", True)):
        mixed = Execution(10, 0.01, spread_up_to=0.2, in_looks=in_looks, margin=0.08)
        yield _equal(f"reproduce{way}, margin 8%, CV 1 to 20%", mixed)
        yield _edge(f"reproduce{way}, margin 8%, CV 1 to 20%, at the margin", replace(mixed, change=EDGE))
    yield _changed("reproduce in looks, slowed by 30%", Execution(10, 0.05, in_looks=True, change=math.log(1.3)))
    yield _changed("reproduce, slowed by 30%, CV 5%", Execution(10, 0.05, change=math.log(1.3)))
    for own in (0.01, 0.03):
        yield _equal(f"reproduce, interaction {own:.0%} declared", Execution(10, 0.05, interaction=own, declared=own))
        yield _edge(f"reproduce, interaction {own:.0%} declared, at the margin",
                    Execution(10, 0.05, interaction=own, declared=own, change=EDGE))
        name, undeclared = f"reproduce, interaction {own:.0%} undeclared", Execution(10, 0.02, interaction=own)
        yield _equal(name, undeclared, shown=True)
        yield _edge(f"{name}, at the margin", replace(undeclared, change=EDGE), shown=True)
    for true in (0.0, 0.03):
        name, chosen = f"reproduce, records with p < 5 %, true ratio {1 + true:g}", Execution(
            10, 0.05, true=math.log1p(true), chosen=True)
        yield _equal(name, chosen, shown=True)
        yield _edge(f"{name}, at the margin", replace(chosen, change=EDGE), shown=True)
        yield _equal(f"{name}, margin 5%, even if undecided", replace(chosen, margin=0.05, undecided=True), shown=True)
    for tries in (3, 5):
        yield _edge(f"reproduce, up to {tries} times until reproduced, at the margin",
                    Execution(10, 0.05, change=EDGE, tries=tries), shown=True)


def _judge(name: str, truth: str, design: Execution, **promised: object) -> Scenario:
    def judge(generator: np.random.Generator, checked: bool) -> Judged:
        return Judged(answer(design, generator))

    return Scenario(name, truth, judge, **promised)  # type: ignore[arg-type]


def _equal(name: str, design: Execution, shown: bool = False) -> Scenario:
    """Return a scenario without a change; `shown`: its rates are shown and not promised."""
    return _judge(name, "equal", design, wrong=frozenset({"not reproduced"}), right=frozenset({"reproduced"}),
                  least=None if shown else POWER, rate=1.0 if shown else ALPHA)


def _edge(name: str, design: Execution, shown: bool = False) -> Scenario:
    """Return the same at a change of the margin."""
    return _judge(name, "margin", design, wrong=frozenset({"reproduced"}), rate=1.0 if shown else ALPHA)


def _changed(name: str, design: Execution) -> Scenario:
    return _judge(name, "ratio 1.3", design, wrong=frozenset({"reproduced"}), right=frozenset({"not reproduced"}),
                  least=POWER)
