"""The unit of a verdict: rare stalls, tuned contenders, failures beside a gain, the estimate after an early stop."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from benchmarks.verdicts.experiment import Experiment, places_of, simulated
from benchmarks.verdicts.scenario import DIFFERENT, SHOWN, Judged, Scenario, primary
from benchmarks.verdicts.sequential_runs import DESIGNS
from repro.record.folder.execution import Execution
from repro.record.folder.ledger import Attempt

STALL = 3.0
STALLED = 0.1
"""Share of the candidate's trials that take three times as long: a geometric ratio of 3^0.1 = 1.116."""
NEAR = 0.005
"""Half a point: a median within it of the true ratio has at most half of the estimates further away on either side."""
SEEN = 29
"""Pairs from which on a run holds no stall in at most 5 %."""


def units() -> Iterator[Scenario]:
    """Yield the three groups of scenarios."""
    for pairs in (7, 10, 20, SEEN, 40):
        yield _stalls(pairs)
        yield _stalls(pairs, ratio=0.95)
    for spread in (0.01, 0.05, 0.1):
        yield _failing(spread)
    for share in (0.1, 0.2):
        yield _crashing(share)
    for pairs in (10, 20):
        yield _tuned(pairs)
    for count in (6, 10):
        yield _searched(count)
    yield _searched(10, ratio=1.05)
    for name in ("power 2", "power 2, early"):
        for design in (Experiment(1, ratio=1.05, spread=0.05), Experiment(1, ratio=1.1, spread=0.1)):
            for corrected in (False, True):
                yield _stopped(name, design, corrected)


def _stalls(pairs: int, ratio: float = 1.0) -> Scenario:
    """Return a candidate that stalls now and then: equal to the baseline until then, so that `same` is wrong, or 5 %
    faster, so that `faster` is. That is allowed only where no stall may be seen."""
    design = Experiment(pairs, spread=0.01, within="speed", ratio=ratio)
    candidate, _ = places_of(design.cells)

    def judge(generator: np.random.Generator, checked: bool) -> Judged:
        run = simulated(design, generator)
        pace = run.seconds_per_sample.copy()
        pace[candidate] *= np.where(generator.random(pairs) < STALLED, STALL, 1.0)
        stalled = replace(run, seconds_per_sample=pace)
        return Judged(primary(stalled.plan, stalled.results).verdict)

    none_seen = (1 - STALLED) ** pairs
    start, wrong = ("", "same") if ratio == 1 else ("5 % faster, ", "faster")
    return Scenario(f"{start}stalls of 10 % x 3, {pairs} pairs", f"ratio {ratio * STALL ** STALLED:.3f}", judge,
                    wrong=frozenset({wrong}), rate=max(0.05, none_seen))


def _crashing(share: float) -> Scenario:
    """Return equal cells of which the slowest trials of one crash and run again at once.

    What the crashes select is in the times, and no test sees it: the rate is that of "faster when it succeeds", shown
    and not promised. "faster" alone cannot come, because failed starts of the quicker cell always add these words.
    """
    design = Experiment(20, spread=0.05, within="speed")
    candidate, _ = places_of(design.cells)

    def judge(generator: np.random.Generator, checked: bool) -> Judged:
        run = simulated(design, generator)
        pace = run.seconds_per_sample.copy()
        crashed = pace[candidate] > np.quantile(pace[candidate], 1 - share)
        pace[candidate, crashed] = generator.choice(pace[candidate, ~crashed], int(crashed.sum()))
        ran = replace(run, seconds_per_sample=pace)
        ours = ran.plan.cells[candidate].cell_id
        results = [item.model_copy(update={"attempt": 2}) if item.cell_id == ours and crashed[item.repeat] else item
                   for item in ran.results]
        starts = [Attempt(trial_id=item.trial_id, cell_id=item.cell_id, repeat=item.repeat, attempt=number, seconds=1,
                          started_ms=10 * place + number, status="ok" if number == item.attempt else "crashed")
                  for place, item in enumerate(results) for number in range(1, item.attempt + 1)]
        found = primary(ran.plan, results, Execution(starts))
        return Judged(f"{found.verdict} when it succeeds" if found.qualifier else found.verdict)

    return Scenario(f"the slowest {share:.0%} crash and run again", "equal", judge,
                    wrong=frozenset({"faster", "faster when it succeeds"}), rate=1.0)


def _failing(spread: float) -> Scenario:
    """Return a candidate that is 5 % faster and diverges in 15 %; `faster` without further words is wrong."""
    design = Experiment(20, ratio=0.95, spread=spread)
    candidate, _ = places_of(design.cells)

    def judge(generator: np.random.Generator, checked: bool) -> Judged:
        run = simulated(design, generator)
        reached = run.reached.copy()
        reached[candidate] &= generator.random(design.pairs) >= 0.15
        failing = replace(run, design=replace(design, missed=0.15, missed_by="diverged"), reached=reached)
        found = primary(failing.plan, failing.results)
        return Judged(f"{found.verdict} when it succeeds" if found.qualifier else found.verdict)

    return Scenario(f"5 % faster, 15 % diverged, CV {spread:.0%}", "fails more", judge, wrong=frozenset({"faster"}))


def _tuned(pairs: int) -> Scenario:
    """Return contenders that are equal over searches, each tuned by one that finds a setting 2 % better or worse.

    The verdict is about the settings found, and says so; what it says of the contenders is shown, and not promised.
    """
    design = Experiment(pairs, spread=0.02, within="speed")

    def judge(generator: np.random.Generator, checked: bool) -> Judged:
        run = simulated(design, generator)
        found = np.exp(generator.normal(0, 0.02, (design.cells, 1)))
        tuned = replace(run, seconds_per_sample=run.seconds_per_sample * found)
        return Judged(primary(tuned.plan, tuned.results).verdict)

    return Scenario(f"tuned by one search each, {pairs} pairs", "equal contenders", judge)


def _searched(count: int, ratio: float = 1.0) -> Scenario:
    """Return the same contenders, tuned by so many independent searches: each gives a pair, with its own luck."""
    design = Experiment(count, spread=0.02 / math.sqrt(5), within="speed", ratio=ratio)

    def judge(generator: np.random.Generator, checked: bool) -> Judged:
        run = simulated(design, generator)
        found = np.exp(generator.normal(0, 0.02, run.seconds_per_sample.shape))
        tuned = replace(run, seconds_per_sample=run.seconds_per_sample * found)
        return Judged(primary(tuned.plan, tuned.results).verdict)

    name = f"tuned by {count} searches each"
    if ratio == 1:
        return Scenario(name, "equal contenders", judge, wrong=DIFFERENT)
    return Scenario(f"{name}, different", f"ratio {ratio:g}", judge, wrong=frozenset({"faster"}),
                    right=frozenset({"slower"}))


def _stopped(name: str, design: Experiment, corrected: bool) -> Scenario:
    """Return runs that end at a look; the median of the corrected ratios is within half a point of the true one."""
    looks = DESIGNS[name]
    run_of = replace(design, pairs=looks["looks"][-1], sequential=json.dumps(looks))

    def judge(generator: np.random.Generator, checked: bool) -> Judged:
        run = simulated(run_of, generator)
        found = primary(run.plan, run.results)
        value = found.unbiased.value if corrected and found.unbiased else found.ratio
        assert value is not None, "every trial has its time"
        apart = value - design.ratio
        return Judged("near" if abs(apart) <= NEAR else "above" if apart > 0 else "below")

    what = "median-unbiased" if corrected else "plain ratio"
    return Scenario(f"stopped, {name}, CV {design.spread:.0%}, {what}", f"ratio {design.ratio:g}", judge,
                    wrong=frozenset({"below"}), right=frozenset({"above"}), rate=0.5,
                    least=SHOWN, most=0.5 if corrected else None)
