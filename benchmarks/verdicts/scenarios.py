"""All scenarios, in the order of the table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import get_args

from benchmarks.verdicts.contests import contests
from benchmarks.verdicts.experiment import Experiment, Miss
from benchmarks.verdicts.other_answers import gate, planned, several_runs, two_runs
from benchmarks.verdicts.rounds import advised_rounds
from benchmarks.verdicts.scenario import RELATIVE, SHOWN, Scenario, single_run, wrongly_same
from benchmarks.verdicts.sequential_runs import sequential_scenarios

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
    yield single_run("missed 10%, 20 pairs, different", Experiment(20, missed=0.1, ratio=1.1), least=0.35)
    yield single_run("missed 10%, 20 pairs, very different", Experiment(20, missed=0.1, ratio=1.3), least=0.8)


SCENARIOS: tuple[Scenario, ...] = (
    *_equal_or_not(), *_drift(), *_grids(), *_cramped(), *_missed(), *_others(), *sequential_scenarios(),
    *advised_rounds(), *contests())
