"""Scenarios whose answer is not the verdict of one run: two runs, a gate in CI, a plan from a pilot."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np

from benchmarks.verdicts.experiment import Experiment, simulated
from benchmarks.verdicts.scenario import DIFFERENT, OPEN, Judged, Scenario, verdict
from repro import stats
from repro.compare import compare
from repro.compare.runs.several_runs import versus_several
from repro.compare.runs.two_runs import Ran, versus
from repro.compare.verdict.condition import parse
from repro.core.errors import UsageError
from repro.core.machine import Machine
from repro.record.environment.environment import Environment, take

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
    """Return the scenario of the same cells run several times in turns; `apart` is the spread of the runs' speeds."""

    def judge(generator: np.random.Generator, checked: bool) -> Judged:
        every = []
        for number in range(2 * runs):
            shift = math.exp(generator.normal(0, apart)) - 1
            run = simulated(replace(design, shift=shift), generator, f"{number}-")
            every.append(Ran(f"run {number}", run.plan, run.results,
                             _here().model_copy(update={"started_ms": number})))
        words = {item.verdict for item in versus_several(every[::2], every[1::2])}
        return Judged(min(words & DIFFERENT, default="same" if "same" in words else OPEN))

    return Scenario(name, "equal", judge, wrong=DIFFERENT)


@lru_cache(maxsize=1)
def _here() -> Environment:
    return take(Machine("cpu", 0, 2), ())


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
            return Judged(verdict(simulated(design, generator)))
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
