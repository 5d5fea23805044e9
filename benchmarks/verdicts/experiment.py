"""One simulated experiment: how the times of its trials come about, and the results that a run would hold."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal

import numpy as np

from repro.core.machine import Machine
from repro.core.random_streams import SEEDS_BELOW
from repro.record.folder.execution import Execution
from repro.record.folder.ledger import Attempt
from repro.record.result.remarks import stated
from repro.record.result.results import Bracket, Point, Result
from repro.suite.model import Suite
from repro.suite.planning.plan import Plan, make_plan, planned_order

OTHER = {"kind": "deepspeed", "stage": 1}


@lru_cache(maxsize=64)
def made_plan(cells: int, seeds: int, sequential: str = "", contest: bool = False) -> Plan:
    """Return a plan with a primary contrast.

    Args:
        cells: 2 or 4.
        sequential: the suite's key of that name, as JSON; "" for a fixed number of pairs.
        contest: design contest instead of stop_at_target.
    """
    processes = [1] if cells == 2 else [1, 2]
    data: dict[str, Any] = {
        "suite": "made-for-a-simulation", "seeds": seeds, "baseline": {"engine": "ddp"},
        "matrix": {"engine": ["ddp", OTHER], "processes": processes},
        "trial": {"workload": "digits", "engine": "ddp", "batch": {"global": 64}, "evaluate_every": 64,
                  "device": "cpu", "optimizer": {"kind": "sgd", "lr": 0.1},
                  "stop": {"metric": "top1", "target": 0.9, "max_epochs": 8,
                           "design": "contest" if contest else "stop_at_target"}},
        "primary": {"candidate": _cell("deepspeed"), "baseline": _cell("ddp")},
    }
    if sequential:
        data["sequential"] = json.loads(sequential)
    return make_plan(Suite.model_validate(data), Machine("cpu", 0, 2))


def ordered(plan: Plan, order_seed: int) -> Plan:
    """Return the plan in the order of execution of this seed."""
    drawn = plan.model_copy(update={"order_seed": order_seed})
    return drawn.model_copy(update={"order": tuple(planned_order(drawn))})


def _cell(engine: str) -> Mapping[str, Any]:
    return {"engine": engine, "processes": 1}


@lru_cache(maxsize=64)
def places_of(cells: int) -> tuple[int, int]:
    """Return the places of the primary contrast's candidate and baseline among the cells of a plan."""
    single = {cell.training.engine.kind: place for place, cell in enumerate(made_plan(cells, 1).cells)
              if cell.choices.processes == 1}
    return single["deepspeed"], single["ddp"]


Miss = Literal["chance", "diverged", "budget"]
TYPICAL_SAMPLES = 1_000_000
"""Samples to the target of a trial without noise."""
SECONDS_PER_SAMPLE = 1e-4
CURVES_FROM = 0.01
"""Distance of evaluations, as a share of the typical samples, from which on results have a curve."""
FAR, NEVER = 4 * TYPICAL_SAMPLES, 10_000 * TYPICAL_SAMPLES
"""Budgets of runs of which some miss by chance, and of others."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """The design and the truth of one simulated run. Times are log-normal unless `noise` says otherwise."""

    pairs: int
    """Up to the last look, if the run is sequential."""
    cells: int = 2
    ratio: float = 1.0
    """True time of the candidate over that of the baseline."""
    spread: float = 0.1
    """Standard deviation of the log times of one cell and seed; of their scale if the noise is t3."""
    noise: Literal["log-normal", "t3"] = "log-normal"
    within: Literal["samples", "speed"] = "samples"
    """Place of the spread: in the samples to the target, or in the seconds of a sample."""
    seed_spread: float = 0.2
    """Standard deviation of the log samples that all cells share in one seed."""
    shift: float = 0.0
    """Relative change of the seconds of a sample of every trial: another day, another machine."""
    drift: float = 0.0
    """Relative change of the seconds of a sample from the first trial to the last, linear in the place."""
    grids: tuple[float, float] = (0.001, 0.001)
    """Distance of evaluations of the candidate and the others, as a share of the typical samples."""
    late: float = 0.0
    """Share of a time before its end from which on its evaluation may have been there, unread."""
    missed: float = 0.0
    """Share of trials that miss their target."""
    missed_by: Miss = "chance"
    """chance: watched to a far end; diverged: the same, and never reaching it; budget: cut off where this share of the
    baseline's trials is not there yet."""
    sequential: str = ""
    """The suite's key of that name, as JSON; "" for a fixed number of pairs."""
    trainings: int | None = None
    """Different trainings of a cell, which its repeats run in turn; None: every repeat is a different one."""
    have: int | None = None
    """Pairs that have run; None: all."""
    crashed: int = 0
    """First trials of the candidate that crashed."""
    parted: int = 0
    """First repeats with a pause of the run after their first trial."""

    def training(self, repeat: int) -> int:
        """Return the training that a repeat runs."""
        return repeat if self.trainings is None else repeat % self.trainings


@dataclass(frozen=True)
class SimulatedRun:
    """All trials of one run, by place of the cell and repeat."""

    design: Experiment
    order_seed: int
    reached: np.ndarray
    end_samples: np.ndarray
    """At the first hit, or at the end of the budget."""
    seconds_per_sample: np.ndarray
    distances: np.ndarray
    """Samples between evaluations."""
    seeds: str
    """Prefix of the hashes of the trials: runs with equal ones have the same seeds."""

    @cached_property
    def plan(self) -> Plan:
        """The plan in its order of execution, of a sequential run up to the last look."""
        return _plan(self.design, self.order_seed)

    @cached_property
    def logs(self) -> np.ndarray:
        """The log ratio of the times of every pair; infinite if one trial missed, NaN if both did."""
        times = np.where(self.reached, self.end_samples * self.seconds_per_sample, np.inf)
        candidate, baseline = places_of(self.design.cells)
        with np.errstate(invalid="ignore"):
            return np.asarray(np.log(times[candidate]) - np.log(times[baseline]))

    @cached_property
    def results(self) -> list[Result]:
        """The results in the order of execution."""
        have = self.design.pairs if self.design.have is None else self.design.have
        return [self._result(cell, repeat) for cell, repeat in self.plan.order if repeat < have]

    @property
    def execution(self) -> Execution | None:
        """The starts, one a second, and the pauses between them; None: there were no pauses."""
        if not self.design.parted:
            return None
        starts = [Attempt(trial_id=item.trial_id, cell_id=item.cell_id, repeat=item.repeat, attempt=1,
                          started_ms=1000 * place, seconds=0.5, status=item.status)
                  for place, item in enumerate(self.results)]
        first = {item.repeat: item.started_ms for item in reversed(starts)}
        return Execution(starts, tuple(first[repeat] + 500 for repeat in range(self.design.parted)))

    def _result(self, cell: int, repeat: int) -> Result:
        end, pace = int(self.end_samples[cell, repeat]), float(self.seconds_per_sample[cell, repeat])
        wall, train, cell_id = end * pace, 0.9 * end * pace, self.plan.cells[cell].cell_id
        distance, reached = int(self.distances[cell]), bool(self.reached[cell, repeat])
        training = self.design.training(repeat)
        base: dict[str, Any] = {
            "trial_id": f"{cell_id}-s{repeat}", "cell_id": cell_id, "repeat": repeat, "attempt": 1, "samples": end,
            "run_seconds": wall, "samples_per_second": end / wall, "train_samples_per_second": end / train,
            "curve": _curve(distance, end, pace, reached),
            "hashes": {"init_weights": f"w-{self.seeds}{training}", "data_order": f"o-{self.seeds}{training}",
                       "data": "d", **({} if self.design.trainings is None else
                                       {"final_weights": f"{cell}-{training}"})},
        }
        if repeat < self.design.crashed and cell == places_of(self.design.cells)[0]:
            return Result(**base, status="crashed", reasons=stated("simulated"))
        if not reached:
            ends = "diverged" if self.design.missed_by == "diverged" else "missed"
            return Result(**base, status=ends, reasons=stated("simulated"))
        bracket = Bracket(miss_samples=end - distance, hit_samples=end, miss_wall_seconds=(end - distance) * pace,
                          hit_wall_seconds=wall)
        return Result(**base, status="ok", tta_wall=wall, tta_train=train, tta_cold=wall + 3, samples_to_target=end,
                      bracket=bracket,
                      tta_wall_bounds=(wall * (1 - self.design.late), wall) if self.design.late else None)


def simulated(design: Experiment, generator: np.random.Generator, seeds: str = "s") -> SimulatedRun:
    """Return a new run of this design."""
    shape = (design.cells, design.pairs)
    # Without drift no figure depends on the order, and one plan serves all runs.
    order_seed = int(generator.integers(SEEDS_BELOW)) if design.drift else 0
    noise, machine, luck = _noise(design, generator, shape), generator.normal(0, 0.001, shape), generator.random(shape)
    crossings = TYPICAL_SAMPLES * np.exp(generator.normal(0, design.seed_spread, shape[1])) * np.ones(shape)
    pace = SECONDS_PER_SAMPLE * np.exp(machine) * (1 + design.shift) * (1 + design.drift * _slots(design, order_seed))
    if design.within == "samples":
        crossings *= np.exp(noise)
    else:
        pace *= np.exp(noise)
    crossings = crossings[:, [design.training(repeat) for repeat in range(design.pairs)]]
    candidate, _ = places_of(design.cells)
    crossings[candidate] *= design.ratio
    if design.missed_by != "budget":
        crossings[luck < design.missed] = math.inf
    shares = np.full(design.cells, design.grids[1])
    shares[candidate] = design.grids[0]
    distances = np.maximum(1, np.round(TYPICAL_SAMPLES * shares)).astype(int)
    last = np.maximum(1, _budget(design) // distances)[:, None]
    evaluations = np.maximum(1, np.ceil(crossings / distances[:, None]))
    reached = evaluations <= last
    return SimulatedRun(design, order_seed, reached, np.where(reached, evaluations, last) * distances[:, None], pace,
                        distances, seeds)


@lru_cache(maxsize=64)
def _plan(design: Experiment, order_seed: int) -> Plan:
    return ordered(made_plan(design.cells, design.pairs, design.sequential), order_seed)


def _slots(design: Experiment, order_seed: int) -> np.ndarray:
    """Return the place of every trial in the order of execution, from 0 to 1."""
    found = np.zeros((design.cells, design.pairs))
    if design.drift:
        order = _plan(design, order_seed).order
        for place, (cell, repeat) in enumerate(order):
            found[cell, repeat] = place / max(1, len(order) - 1)
    return found


def _noise(design: Experiment, generator: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    drawn = generator.standard_normal(shape) if design.noise == "log-normal" else generator.standard_t(3, shape)
    return np.asarray(design.spread * drawn)


def _budget(design: Experiment) -> int:
    """Return the samples after which a trial ends."""
    if not design.missed:
        return NEVER
    if design.missed_by != "budget":
        return FAR
    from scipy.special import ndtri

    spread = math.hypot(design.spread, design.seed_spread)
    return round(TYPICAL_SAMPLES * math.exp(spread * float(ndtri(1 - design.missed))))


def _curve(distance: int, end: int, pace: float, reached: bool) -> tuple[Point, ...]:
    """Return the evaluations at every multiple of the distance; none on a fine grid, which needs none."""
    if distance < CURVES_FROM * TYPICAL_SAMPLES:
        return ()
    return tuple(
        Point.model_construct(samples=at, epochs=at / TYPICAL_SAMPLES, wall_seconds=at * pace,
                              train_seconds=0.9 * at * pace, value=0.95 if reached and at == end else 0.5,
                              train_loss=None)
        for at in range(distance, end + 1, distance))
