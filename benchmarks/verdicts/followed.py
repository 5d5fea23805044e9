"""Scenarios of a user who does what the advice under an open comparison says, literally, by its kind."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.verdicts.contests import Contest, contest_of
from benchmarks.verdicts.experiment import Experiment, SimulatedRun, simulated
from benchmarks.verdicts.scenario import DIFFERENT, OPEN, Judged, Scenario
from repro.compare import Comparison, compare
from repro.compare.figures import Advice, AdviceKind
from repro.compare.verdict.family import ALPHA
from repro.suite.metrics import DEFAULT

ROUNDS = 12
"""Advice that the user follows at most, so that a simulation ends."""
MOST = 60
"""Pairs beyond which the user gives up."""
DESIGN: Mapping[str, Any] = {"looks": [10, 15, 20, 30], "spending": "power", "power": 2}
SEQUENTIAL = Experiment(30, sequential=json.dumps(DESIGN))

Follow = Callable[[SimulatedRun, Advice, np.random.Generator], SimulatedRun | None]
"""Returns the run after the advice was followed; None: there is nothing to run."""


def _new(**changes: Any) -> Follow:
    """Return the start of a new run, with new seeds."""
    return lambda run, advice, generator: simulated(replace(
        run.design, **{"pairs": min(MOST, advice.n) or run.design.pairs, "have": None, "crashed": 0, **changes}),
        generator)


def _resumed(run: SimulatedRun, advice: Advice, generator: np.random.Generator) -> SimulatedRun:
    return replace(run, design=replace(run.design, have=advice.n or None))


def _rerun(run: SimulatedRun, advice: Advice, generator: np.random.Generator) -> SimulatedRun:
    return replace(run, design=replace(run.design, crashed=0))


def _same_grids(run: SimulatedRun, advice: Advice, generator: np.random.Generator) -> SimulatedRun:
    return simulated(replace(run.design, grids=(min(run.design.grids),) * 2), generator)


def _nothing(run: SimulatedRun, advice: Advice, generator: np.random.Generator) -> None:
    return None


FOLLOWED: Mapping[AdviceKind, Follow] = {
    "missing_pairs": _resumed, "next_look": _resumed, "lost_trials": _rerun, "equal_grids": _same_grids,
    "timely": _new(late=0.0), "more_pairs": _new(sequential=""), "declare_pairs": _new(),
    "parted_pairs": _new(parted=0), "own_seeds": _new(trainings=None),
    "tested": _nothing, "tested_in_a_contest": _nothing, "looks_used_up": _nothing, "not_run_again": _nothing,
}


@dataclass(frozen=True, slots=True)
class Start:
    """The experiment that a simulated user starts with, and the contrasts read from it."""

    name: str
    design: Experiment | Contest
    kinds: tuple[AdviceKind, ...]
    """Advice that the user may be given."""
    metric: str = DEFAULT
    primary: bool = True
    """False: the other contrasts, and other metrics, of which none has a verdict yet."""


STARTS = (
    Start("4 pairs", Experiment(4), ("more_pairs", "tested")),
    Start("5 pairs", Experiment(5), ("tested",)),
    Start("6 pairs", Experiment(6), ("tested",)),
    Start("10 pairs", Experiment(10), ("tested",)),
    Start("sequential", SEQUENTIAL, ("looks_used_up",)),
    Start("the first look", replace(SEQUENTIAL, have=10), ("next_look", "looks_used_up")),
    Start("6 of 10 pairs", Experiment(10, have=6), ("missing_pairs", "tested")),
    Start("a crash", Experiment(10, crashed=1), ("lost_trials", "tested")),
    Start("6 pairs, 2 parted", Experiment(6, parted=2), ("parted_pairs", "tested")),
    Start("late reads", Experiment(10, late=0.05, spread=0.03), ("timely", "tested")),
    Start("unlike grids", Experiment(10, grids=(0.001, 0.005), spread=0.03), ("equal_grids", "tested")),
    Start("one training", Experiment(10, trainings=1), ("own_seeds", "tested"), metric="samples",
          primary=False),
    Start("contrasts out of reach", Experiment(6, cells=4), ("declare_pairs", "tested"), primary=False),
    Start("missed 20%", Experiment(20, missed=0.2), ("tested",)),
    Start("a contest", Contest(10, better=3.0), ("tested_in_a_contest",)),
    Start("a contest, 4 runs", Contest(4, better=3.0), ("more_pairs", "tested_in_a_contest")),
    Start("a crash in a contest", Contest(10, better=3.0, crashed=1), ("not_run_again",)),
)


def advised_scenarios() -> Iterator[Scenario]:
    """Yield equal cells from every start: one promise of 5 %, however many runs the advice leads to."""
    for start in STARTS:
        yield Scenario(f"advice followed, from {start.name}", "equal", _judge(start), wrong=DIFFERENT, rate=ALPHA)
    for pairs in (4, 5):
        margin = Start("", Experiment(pairs, spread=0.03, ratio=1.05), ("more_pairs", "tested"))
        yield Scenario(f"advice followed, from {pairs} pairs, at the margin", "ratio 1.05", _judge(margin),
                       wrong=frozenset({"same"}))


def _judge(start: Start) -> Callable[[np.random.Generator, bool], Judged]:
    return lambda generator, checked: Judged(follow(start, generator)[0])


def follow(start: Start, generator: np.random.Generator) -> tuple[str, tuple[AdviceKind, ...]]:
    """Return the answer with which a user ends, and the kinds of advice that led there."""
    if isinstance(start.design, Contest):
        return _follow_contest(start.design, generator)
    run: SimulatedRun | None = simulated(start.design, generator)
    given: list[AdviceKind] = []
    while run is not None and len(given) < ROUNDS:
        found = [item for item in compare(run.plan, run.results, start.metric, execution=run.execution)
                 if item.primary == start.primary]
        if word := _decided(found):
            return word, tuple(given)
        asked = next((item.advice for item in found if item.advice), None)
        given += [asked.kind] if asked else []
        run = FOLLOWED[asked.kind](run, asked, generator) if asked else None
    return OPEN, tuple(given)


def _decided(found: list[Comparison]) -> str:
    words = {item.verdict for item in found}
    return min(words & DIFFERENT, default="same" if words == {"same"} else "")


def _follow_contest(design: Contest, generator: np.random.Generator) -> tuple[str, tuple[AdviceKind, ...]]:
    found = contest_of(design, generator)
    advice = found.advice
    if advice is None or not advice.command:
        return found.verdict, (advice.kind,) if advice else ()
    word, later = _follow_contest(replace(design, pairs=advice.n), generator)
    return word, (advice.kind, *later)
