"""All scenarios, in the order of the table."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import get_args

import numpy as np

from benchmarks.verdicts.contests import contests
from benchmarks.verdicts.exchange import exchange, here
from benchmarks.verdicts.experiment import Experiment, Miss, simulated
from benchmarks.verdicts.followed import advised_scenarios
from benchmarks.verdicts.lanes import lane_scenarios
from benchmarks.verdicts.reproductions import reproductions
from benchmarks.verdicts.scenario import (
    DIFFERENT,
    OPEN,
    RELATIVE,
    SHOWN,
    Judged,
    Scenario,
    primary,
    single_run,
    wrongly_same,
)
from benchmarks.verdicts.sequential_runs import sequential_scenarios
from benchmarks.verdicts.units import units
from repro import stats
from repro.compare import compare
from repro.compare.runs.two_runs import Ran, versus, versus_several
from repro.compare.verdict.condition import parse
from repro.compare.verdict.family import ALPHA
from repro.core.errors import UsageError
from repro.suite.design import LEAST_REPEATS

FULL_PATH = 40
"""Pairs up to which a planned experiment is judged by `compare`; beyond, by the interval, which alone decides there."""


def two_runs(name: str, design: Experiment, shift: float, same_seeds: bool) -> Scenario:
    """Return the scenario of the same cells run twice, the second time on a machine that is slower by `shift`."""

    def judge(generator: np.random.Generator, checked: bool) -> Judged:
        first = simulated(design, generator)
        later = simulated(replace(design, shift=shift), generator, "s" if same_seeds else "t")
        words = {item.verdict for item in versus(Ran("one", first.plan, first.results),
                                                 Ran("other", later.plan, later.results))}
        return Judged(min(words & (DIFFERENT | {"same"}), default="withheld"))

    return Scenario(name, "equal", judge, wrong=DIFFERENT | {"same"})


def several_runs(name: str, design: Experiment, apart: float, runs: int = 5) -> Scenario:
    """Return the scenario of the same cells run several times, ABBA; `apart` is the spread of the runs' speeds."""

    def judge(generator: np.random.Generator, checked: bool) -> Judged:
        every = []
        for number in range(2 * runs):
            shift = math.exp(generator.normal(0, apart)) - 1
            run = simulated(replace(design, shift=shift), generator, f"{number}-")
            every.append(Ran(f"run {number}", run.plan, run.results,
                             here().model_copy(update={"started_ms": number})))
        before, after = ([run for place, run in enumerate(every) if (place % 4 in (0, 3)) is first]
                         for first in (True, False))
        words = {item.verdict for item in versus_several(before, after)}
        return Judged(min(words & DIFFERENT, default="same" if "same" in words else OPEN))

    return Scenario(name, "equal", judge, wrong=DIFFERENT)


def gate(name: str, design: Experiment, condition: str, every: bool) -> Scenario:
    """Return the scenario of `--fail-if CONDITION` on equal cells.

    Args:
        every: with --fail-any, which applies it to all contrasts; refused if they can never hold it.
    """
    asked = parse(condition)

    def judge(generator: np.random.Generator, checked: bool) -> Judged:
        run = simulated(design, generator)
        found = compare(run.plan, run.results, one_family=every)
        subject = [item for item in found if every or item.primary]
        try:
            return Judged("fails" if any(asked.failure(item) for item in subject) else "passes")
        except UsageError:
            return Judged("refused")

    return Scenario(name, "equal", judge, wrong=frozenset({"fails"}))


def planned(name: str, pilot: int, spread: float, ratio: float = 1.05) -> Scenario:
    """Return the scenario of an experiment whose pairs `plan --pilot` took from a pilot, for the true ratio."""

    def judge(generator: np.random.Generator, checked: bool) -> Judged:
        first = generator.normal(0, spread, (2, pilot))
        pairs = _pairs(_rounded(float(np.std(first[0] - first[1], ddof=1))), ratio, pilot)
        design = Experiment(pairs, ratio=ratio, spread=spread)
        if pairs <= FULL_PATH:
            run = simulated(design, generator)
            return Judged(primary(run.plan, run.results).verdict)
        logs = generator.normal(0, spread, (2, pairs))
        _, interval = stats.paired_ratio(np.exp(logs[0] + math.log(ratio)).tolist(), np.exp(logs[1]).tolist())
        return Judged("slower" if interval.low > 1 else "faster" if interval.high < 1 else "inconclusive")

    return Scenario(name, f"ratio {ratio:g}", judge, wrong=frozenset({"faster"}), right=frozenset({"slower"}),
                    least=0.78, most=0.90)


def _rounded(spread: float) -> float:
    """Return the spread to 1 %, so that few different plans are computed."""
    return math.exp(round(math.log(spread) * 100) / 100)


@lru_cache(maxsize=4096)
def _pairs(spread: float, ratio: float, pilot: int) -> int:
    try:
        return stats.pairs_needed(spread, ratio, pilot=pilot)
    except ValueError:
        return stats.MOST_PAIRS


MISSES: tuple[Miss, ...] = get_args(Miss)
FINE = 0.1
"""Grid up to which the paired t test is taken as valid: beyond, most pairs are equal, and it calls four of four others
that changed to one side a difference, which happens to equal cells in one of eight."""
ALL_SIX = 0.7
"""At six pairs, the fewest that can be significant, the exact test requires all six on one side."""


def _equal_or_not() -> Iterator[Scenario]:
    """Plain runs; ratios that the paired t test finds in about two of three."""
    for pairs, ratio in ((6, 1.21), (8, 1.16), (10, 1.13), (20, 1.085), (30, 1.068)):
        yield single_run(f"log-normal, {pairs} pairs", Experiment(pairs))
        yield single_run(f"log-normal, {pairs} pairs, different", Experiment(pairs, ratio=ratio),
                         RELATIVE if pairs > 6 else ALL_SIX)
    for pairs, ratio in ((10, 1.2), (20, 1.13)):
        yield single_run(f"t3, {pairs} pairs", Experiment(pairs, noise="t3"))
        yield single_run(f"t3, {pairs} pairs, different", Experiment(pairs, noise="t3", ratio=ratio))


def _drift() -> Iterator[Scenario]:
    """Four cells, random order in blocks, a spread of 1 % in speed: the drift is larger than the noise."""
    for drift in (0.0, 0.1, 0.3):
        equal = Experiment(10, cells=4, spread=0.01, within="speed", drift=drift)
        yield single_run(f"drift {drift:.0%}", equal)
        yield single_run(f"drift {drift:.0%}, different", replace(equal, ratio=1.013))


def _grids() -> Iterator[Scenario]:
    for share in (0.05, 0.1, 0.2, 0.33):
        equal = Experiment(10, spread=0.03, grids=(share, share))
        yield single_run(f"grid {share:.0%}", equal)
        yield wrongly_same(f"grid {share:.0%}, at the margin", replace(equal, ratio=1.05))
        yield wrongly_same(f"grid {share:.0%}, beyond the margin", replace(equal, ratio=1.1),
                           RELATIVE if share <= FINE else SHOWN)
    for ours, theirs in ((0.05, 0.1), (0.1, 0.33), (0.33, 0.1), (0.2, 0.25), (0.01, 0.05)):
        yield single_run(f"unlike grids, {ours:.1%} and {theirs:.1%}",
                         Experiment(10, spread=0.03, grids=(ours, theirs)))


def _cramped() -> Iterator[Scenario]:
    """All crossings between the same two evaluations, at 0.9 and 1.05 to 1.2 of the typical samples."""
    for share, ratio in ((0.3, 1.05), (0.3, 1.1), (0.18, 1.05), (0.15, 1.1)):
        yield wrongly_same(f"grid {share:.0%}, all in one step, ratio {ratio:g}", Experiment(
            10, spread=0.02, seed_spread=0.01, grids=(share, share), ratio=ratio))


def _others() -> Iterator[Scenario]:
    calm = Experiment(10, spread=0.01, within="speed", seed_spread=0.0)
    for shift in (0.0, 0.01, 0.02):
        for same_seeds in (True, False):
            yield two_runs(f"two runs, {shift:.0%} apart, {'same' if same_seeds else 'other'} seeds", calm, shift,
                           same_seeds)
    for apart in (0.0, 0.02):
        yield several_runs(f"five runs a side in turns, {apart:.0%} apart", replace(calm, pairs=5), apart)
    for condition in ("slower", "ratio.low > 1.05"):
        for every in (False, True):
            for seeds in (6, 10):
                yield gate(f"{seeds} seeds, --fail-if {condition!r}{' --fail-any' if every else ''}",
                           Experiment(seeds, cells=4), condition, every)
    for spread in (0.03, 0.1, 0.3):
        for pilot in (3, 6, 10, 20):
            yield planned(f"plan from a pilot of {pilot} pairs, CV {spread:.0%}", pilot, spread)


def _missed() -> Iterator[Scenario]:
    for share in (0.1, 0.2, 0.3):
        for pairs in (10, 20):
            for by in MISSES:
                yield single_run(f"missed {share:.0%} by {by}, {pairs} pairs",
                                 Experiment(pairs, missed=share, missed_by=by))
    yield single_run("missed 10%, 20 pairs, different", Experiment(20, missed=0.1, ratio=1.1), least=0.25)
    # Where the quicker cell happens to fail more often, the mean must show the gain too.
    yield single_run("missed 10%, 20 pairs, very different", Experiment(20, missed=0.1, ratio=1.3), least=0.5)


def _repeated() -> Iterator[Scenario]:
    """Programs that ignore their seed, by samples: of repeats of few trainings no verdict is right."""
    for trainings, repeats in ((1, 10), (3, 12), (8, 12)):
        design = Experiment(repeats, trainings=trainings)
        words = "training" if trainings == 1 else "trainings"

        def judge(generator: np.random.Generator, checked: bool, design: Experiment = design) -> Judged:
            run = simulated(design, generator)
            return Judged(compare(run.plan, run.results, "samples")[0].verdict)

        few = trainings < LEAST_REPEATS
        yield Scenario(f"{trainings} {words} repeated, {repeats} pairs, samples", "equal", judge,
                       wrong=DIFFERENT | ({"same"} if few else set()), rate=0.0 if few else ALPHA)


SCENARIOS: tuple[Scenario, ...] = (
    *_equal_or_not(), *_drift(), *_grids(), *_cramped(), *_missed(), *_others(), *sequential_scenarios(),
    *advised_scenarios(), *contests(), *_repeated(), *exchange(), *reproductions(),
    *units(), *lane_scenarios())
