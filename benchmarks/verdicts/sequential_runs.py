"""Scenarios of sequential designs: runs that stop at the first look which settles the primary contrast.

The results of all pairs up to the last look are simulated; `compare` takes the looks in turn and stops, as a run does.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from benchmarks.verdicts.experiment import Experiment, SimulatedRun, places_of, simulated
from benchmarks.verdicts.scenario import DIFFERENT, OPEN, SHOWN, Judged, Scenario, of_ratio, single_run, wrongly_same
from benchmarks.verdicts.screen import ALPHA, DISAGREE, first_refuted, is_open_anytime, paired_p
from repro import stats
from repro.compare.design.sequential import take_look
from repro.compare.evidence import drift
from repro.compare.evidence.stage import Stage
from repro.suite.design import ANYTIME
from repro.suite.sequential import ANYTIME_LEAST

DESIGNS: Mapping[str, Mapping[str, Any]] = {
    "power 2": {"looks": [10, 15, 20, 30], "spending": "power", "power": 2},
    "power 2, early": {"looks": [8, 12, 16, 20], "spending": "power", "power": 2},
    "power 1": {"looks": [8, 12, 18, 27, 40], "spending": "power", "power": 1},
    "O'Brien-Fleming": {"looks": [12, 18, 24, 30], "spending": "obrien-fleming"},
    "Pocock": {"looks": [10, 15, 20, 30], "spending": "pocock"},
    "Pocock, early": {"looks": [8, 12, 16, 20], "spending": "pocock"},
}
"""Every spending function, at looks that the exact test's floor allows."""
LAST = 60
"""Pairs up to which open-ended runs are simulated."""
ANYTIME_LOOKS = ANYTIME.seeds - ANYTIME_LEAST + 1
"""Looks of an open-ended run; tests of brackets share their error over all of them."""


def sequential_scenarios() -> Iterator[Scenario]:
    """Yield equal cells, a difference that the paired t test of all pairs finds in nine of ten, and a true ratio at the
    margin."""
    for name, design in DESIGNS.items():
        pairs = design["looks"][-1]
        equal = Experiment(pairs, sequential=json.dumps(design))
        ratio = math.exp(3.4 * 0.1 * math.sqrt(2 / pairs))
        yield single_run(f"sequential, {name}", equal)
        yield single_run(f"sequential, {name}, different", replace(equal, ratio=ratio))
        yield wrongly_same(f"sequential, {name}, at the margin", replace(equal, spread=0.03, ratio=1.05))
    quiet = Experiment(30, cells=2, spread=0.01, within="speed", sequential=json.dumps(DESIGNS["power 2"]))
    yield single_run("sequential, power 2, drift 30%", replace(quiet, drift=0.3))
    yield single_run("sequential, power 2, missed 20% by chance", Experiment(
        30, missed=0.2, sequential=json.dumps(DESIGNS["power 2"])))
    equal = Experiment(LAST)
    yield _open_ended("anytime", equal)
    yield _open_ended("anytime, t3", replace(equal, noise="t3"))
    yield _open_ended("anytime, missed 20% by chance", replace(equal, missed=0.2))
    yield _open_ended("anytime, different", replace(equal, ratio=1.08))
    yield _every_look("anytime, drift 30%", replace(quiet, sequential="", drift=0.3))
    noisy = Experiment(LAST, cells=2, within="speed", drift=0.3)
    yield _every_look("anytime, noisy, drift 30%", noisy)
    yield _every_look("anytime, noisy, drift 10%", replace(noisy, drift=0.1))


def _open_ended(name: str, design: Experiment) -> Scenario:
    """Return the scenario of --anytime with a look after every pair.

    The e-value at a look is the largest so far, so the first look that can find a difference is computed for all pairs
    at once; `compare` then takes that look, or the last one.
    """

    def judge(generator: np.random.Generator, checked: bool) -> Judged:
        run = simulated(design, generator)
        first, p = first_refuted(run.logs), paired_p(run.logs)
        look = max(first or LAST, ANYTIME_LEAST)
        word = OPEN if is_open_anytime(run.logs) and not checked else _at_look(run, look)
        early = first is None or (checked and look > ANYTIME_LEAST and _at_look(run, look - 1) in DIFFERENT)
        return Judged(DISAGREE if word in DIFFERENT and early else word, None if p is None else p <= ALPHA)

    return of_ratio(name, design.ratio, judge, SHOWN)


def _every_look(name: str, design: Experiment) -> Scenario:
    """Return the scenario of --anytime on a machine that drifts: every look estimates the slope and adjusts the ratios
    again, so each look has stakes of its own; `compare` takes the looks at which they could settle it.
    """

    def judge(generator: np.random.Generator, checked: bool) -> Judged:
        run, quick = simulated(design, generator), OPEN
        places = places_in_order(run)
        for pairs in range(ANYTIME_LEAST, design.pairs + 1):
            still_open = is_open_anytime(adjusted_logs(run, places, pairs))
            word = OPEN if still_open and not checked else _at_look(run, pairs)
            if word != OPEN:
                quick = DISAGREE if still_open else word
                break
        return Judged(quick, None)

    return Scenario(name, "equal", judge, wrong=DIFFERENT)


def adjusted_logs(run: SimulatedRun, places: np.ndarray, pairs: int) -> np.ndarray:
    """Return the log ratios of the first pairs, less what the drift among them explains, as `drift.doubts` finds it.

    Args:
        places: of all trials, by `places_in_order`.
    """
    logs = np.log(run.seconds_per_sample[:, :pairs])
    blocks = np.mean(logs - logs.mean(axis=1, keepdims=True), axis=0)
    middles = np.median(places[:, :pairs], axis=0)
    order = np.argsort(middles)
    later, earlier = np.tril_indices(pairs, -1)
    rises = blocks[order][later] - blocks[order][earlier]
    if trend_p(pairs, int(np.sum(np.sign(rises)))) > drift.ALPHA:
        return np.asarray(run.logs[:pairs])
    slope = np.median(rises / (middles[order][later] - middles[order][earlier]))  # Theil and Sen
    candidate, baseline = places_of(run.design.cells)
    return np.asarray(run.logs[:pairs] - slope * (places[candidate, :pairs] - places[baseline, :pairs]))


@cache
def trend_p(count: int, rises: int) -> float:
    """Return Kendall's exact p of `count` values in order, without ties.

    Args:
        rises: pairs that rise less pairs that fall.
    """
    left, values = (count * (count - 1) // 2 - rises) // 2, list(range(count))
    for place in range(count):  # move values to the front until so many pairs fall
        moved = min(left, count - 1 - place)
        values.insert(place, values.pop(place + moved))
        left -= moved
    return stats.order_trend(list(range(count)), values)[1]


def places_in_order(run: SimulatedRun) -> np.ndarray:
    """Return the place of every trial in the order of execution: [cells, pairs]."""
    found = np.zeros((run.design.cells, run.design.pairs))
    for place, (cell, repeat) in enumerate(run.plan.order):
        found[cell, repeat] = place
    return found


def _at_look(run: SimulatedRun, pairs: int) -> str:
    taken = take_look(run.plan, run.results, Stage(pairs - ANYTIME_LEAST + 1, ANYTIME_LOOKS, pairs, anytime=True))
    assert taken is not None, "the results of all pairs are there"
    return taken.found.verdict
