"""Runs in a pool: nodes of different level and drift, cells that interact with nodes, blocks that end in any order."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.verdicts.experiment import Experiment, SimulatedRun, places_of, simulated
from benchmarks.verdicts.scenario import RELATIVE, SHOWN, Judged, Scenario, of_ratio, primary
from benchmarks.verdicts.screen import ALPHA, paired_p
from repro.compare.design.sequential import looks_taken
from repro.core.random_streams import SEEDS_BELOW
from repro.record.folder.execution import Execution, execution_of
from repro.record.folder.ledger import Attempt
from repro.suite.model import Unit
from repro.suite.planning.plan import Plan, solo_seeds


@dataclass(frozen=True, slots=True)
class Lanes:
    """The nodes of a pool. All but `count` are relative to the noise-free seconds of a sample."""

    count: int
    level: float = 0.0
    """Standard deviation of the log level of a node, which both cells share."""
    drift: float = 0.0
    """Largest relative change over a lane's blocks: each lane has its own, drawn between minus this and this."""
    interaction: float = 0.0
    """Standard deviation over nodes of the log ratio, as a multiple of the spread of one trial."""


def in_lanes(
    design: Experiment, lanes: Lanes, generator: np.random.Generator, unit: Unit = "block"
) -> tuple[SimulatedRun, Plan, Execution, float]:
    """Return a run whose blocks are taken by lanes, each as soon as it is free, its plan with the declared unit, its
    starts, and the true mean log ratio on the nodes that ran them."""
    run = simulated(design, generator)
    run = replace(run, order_seed=int(generator.integers(SEEDS_BELOW)))
    levels = np.exp(generator.normal(0, lanes.level, lanes.count))
    slopes = generator.uniform(-lanes.drift, lanes.drift, lanes.count)
    apart = generator.normal(0, lanes.interaction * design.spread, lanes.count)
    pace, candidate = run.seconds_per_sample.copy(), places_of(design.cells)[0]
    free, places, attempts = np.zeros(lanes.count), [0] * lanes.count, list[Attempt]()
    true = 0.0
    most = max(1, math.ceil(design.pairs / lanes.count) * design.cells - 1)
    for repeat in range(design.pairs):
        lane = int(np.argmin(free))
        for cell in (index for index, number in run.plan.order if number == repeat):
            pace[cell, repeat] *= levels[lane] * (1 + slopes[lane] * places[lane] / most)
            if cell == candidate:
                pace[cell, repeat] *= math.exp(apart[lane])
            seconds = float(run.end_samples[cell, repeat] * pace[cell, repeat])
            cell_id = run.plan.cells[cell].cell_id
            attempts.append(Attempt(
                trial_id=f"{cell_id}-s{repeat}", cell_id=cell_id, repeat=repeat, attempt=1, status="ok",
                started_ms=1e12 + 1e3 * free[lane], seconds=seconds, nodes=(f"node{lane}",), shard=f"{repeat + 1}/1"))
            free[lane] += seconds
            places[lane] += 1
        true += float(apart[lane]) / design.pairs
    plan = run.plan.model_copy(update={"suite": run.plan.suite.model_copy(update={"unit": unit})})
    return replace(run, seconds_per_sample=pace), plan, execution_of(attempts, ()), math.log(design.ratio) + true


def pooled(
    name: str, design: Experiment, lanes: Lanes, unit: Unit = "block", shown: bool = False, relative: float = RELATIVE,
) -> Scenario:
    """Return the scenario of one run in a pool, judged by its primary contrast.

    Args:
        unit: what the verdict is declared to be about.
        shown: how often it errs about all nodes of the class is shown and not promised.
        relative: power relative to that of the paired t test of all pairs that is promised.
    """

    def judge(generator: np.random.Generator, checked: bool) -> Judged:
        run, plan, execution, _ = in_lanes(design, lanes, generator, unit)
        if design.sequential:
            return Judged([item.found.verdict for item in looks_taken(plan, run.results, execution)][-1])
        found = primary(plan, run.results, execution)
        p = paired_p(run.logs)
        return Judged(found.verdict, None if p is None else p <= ALPHA)

    return of_ratio(name, design.ratio, judge, relative, rate=1.0 if shown else ALPHA)


def covered(name: str, design: Experiment, lanes: Lanes) -> Scenario:
    """Return the scenario of a run in a pool whose interval must hold the true ratio of the nodes that ran it."""

    def judge(generator: np.random.Generator, checked: bool) -> Judged:
        run, plan, execution, true = in_lanes(design, lanes, generator)
        found = primary(plan, run.results, execution).interval
        assert found is not None, "its pairs differ"
        return Judged("inside" if math.log(found.low) <= true <= math.log(found.high) else "outside")

    return Scenario(name, "these nodes", judge, wrong=frozenset({"outside"}))


def under_load(
    design: Experiment, lanes: Lanes, solo: int, effect: float, generator: np.random.Generator
) -> tuple[SimulatedRun, Plan, Execution]:
    """Return a run in a pool whose load makes the ratio larger by `effect`, of which `solo` blocks also ran alone, on
    other lanes of the same kind."""
    run, plan, execution, _ = in_lanes(design, lanes, generator)
    alone, _, _, _ = in_lanes(replace(design, ratio=design.ratio / (1 + effect)), lanes, generator)
    chosen = solo_seeds(plan, solo)
    return run, plan, replace(execution, alone=[item for item in alone.results if item.repeat in chosen])


def loaded(name: str, design: Experiment, lanes: Lanes, solo: int, effect: float = 0.0, shown: bool = False
           ) -> Scenario:
    """Return the scenario of the test of the load, which ends in a caution or not."""

    def judge(generator: np.random.Generator, checked: bool) -> Judged:
        run, plan, execution = under_load(design, lanes, solo, effect, generator)
        found = primary(plan, run.results, execution).by_load
        assert found is not None, "its trials have times"
        return Judged("differs" if found.differs else "no difference")

    if effect:
        return Scenario(name, f"load {effect:.0%}", judge, right=frozenset({"differs"}))
    return Scenario(name, "no load", judge, wrong=frozenset({"differs"}), rate=1.0 if shown else ALPHA)


LOOKS = '{"looks": [8, 12, 18], "spending": "power", "power": 1.0}'


def lane_scenarios() -> Iterator[Scenario]:
    """Equal cells and different ones on 1, 4 and 16 lanes."""
    calm = Experiment(16, spread=0.01, within="speed")
    for count in (1, 4, 16):
        for level in (0.0, 0.3):
            for drift in (0.0, 0.3):
                lanes = Lanes(count, level, drift)
                called = f"{count} lane{'s' * (count > 1)}, level {level:.0%}, drift {drift:.0%}"
                yield pooled(called, calm, lanes)
        yield pooled(f"{count} lane{'s' * (count > 1)}, level 30%, drift 0%, different", replace(calm, ratio=1.009),
                     Lanes(count, 0.3))
        yield pooled(f"{count} lane{'s' * (count > 1)}, level 30%, looks", replace(calm, pairs=18, sequential=LOOKS),
                     Lanes(count, 0.3, 0.1))
    for count in (1, 4, 16):
        yield pooled(f"{count} lane{'s' * (count > 1)}, interaction 1, all nodes", calm, Lanes(count, 0.3, 0.0, 1.0),
                     shown=count < 16)
    long = replace(calm, pairs=48)
    for count in (4, 16):
        apart = Lanes(count, 0.3, 0.0, 1.0)
        yield pooled(f"{count} lanes, 48 blocks, interaction 1, all nodes", long, apart, shown=True)
        yield covered(f"{count} lanes, 48 blocks, interaction 1, these nodes", long, apart)
    for count in (6, 16):
        called = f"unit node, {count} nodes, 48 blocks"
        for drift, interaction in ((0.0, 0.0), (0.3, 0.0), (0.0, 1.0), (0.3, 1.0)):
            yield pooled(f"{called}, drift {drift:.0%}, interaction {interaction:g}", long,
                         Lanes(count, 0.3, drift, interaction), "node")
        yield pooled(f"{called}, different", replace(long, ratio=1.006), Lanes(count, 0.3), "node",
                     relative=RELATIVE if count > 6 else SHOWN)
    for solo in (6, 12):
        yield loaded(f"solo {solo} of 16 blocks", calm, Lanes(4, 0.3), solo)
        yield loaded(f"solo {solo} of 16 blocks, drift 30%", calm, Lanes(4, 0.3, 0.3), solo)
        yield loaded(f"solo {solo} of 16 blocks, interaction 1", calm, Lanes(4, 0.3, 0.0, 1.0), solo, shown=True)
        yield loaded(f"solo {solo} of 16 blocks, load", calm, Lanes(4, 0.3), solo, 0.02)
