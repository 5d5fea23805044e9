"""One simulated experiment: how the times of its trials come about, and the results that a run would hold."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from repro.bench.verdicts.made_plans import made_plan, places_of
from repro.record.results import Bracket, Point, Result
from repro.suite.plan import Plan

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
    """How the trials of one run come about. Times are log-normal unless `noise` says otherwise."""

    pairs: int
    cells: int = 2
    ratio: float = 1.0
    """True time of the candidate over that of the baseline."""
    spread: float = 0.1
    """Standard deviation of the log times of one cell and seed; of their scale if the noise is t3."""
    noise: Literal["log-normal", "t3"] = "log-normal"
    within: Literal["samples", "speed"] = "samples"
    """Where the spread is: in the samples to the target, or in the seconds of a sample."""
    seed_spread: float = 0.2
    """Standard deviation of the log samples that all cells share in one seed."""
    shift: float = 0.0
    """Relative change of the seconds of a sample of every trial: another day, another machine."""
    drift: float = 0.0
    """Relative change of the seconds of a sample from the first trial to the last, linear in the place."""
    grids: tuple[float, float] = (0.001, 0.001)
    """Distance of evaluations of the candidate and the others, as a share of the typical samples."""
    missed: float = 0.0
    """Share of trials that miss their target."""
    missed_by: Miss = "chance"
    """chance: watched to a far end; diverged: the same, and never reaching it; budget: cut off where this share of the
    baseline's trials is not there yet."""


@dataclass(frozen=True, slots=True)
class _Trial:
    """One trial: where it crossed its target, how fast it was, and on which grid it was evaluated."""

    crossing: float
    """Samples; infinite: never."""
    seconds_per_sample: float
    distance: int
    budget: int
    ends: Literal["missed", "diverged"]


def simulated(design: Experiment, generator: np.random.Generator, sequential: str = "") -> tuple[Plan, list[Result]]:
    """Return the plan of a new run, and its results."""
    plan = made_plan(design.cells, design.pairs, generator, sequential)
    return plan, results_of(plan, design, generator)


def results_of(
    plan: Plan, design: Experiment, generator: np.random.Generator, seeds: str = "s"
) -> list[Result]:
    """Return the results of all trials of a plan, in its order.

    Args:
        seeds: what the hashes of the trials start with: runs with equal ones have the same seeds.
    """
    candidate, _ = places_of(plan)
    shape = (len(plan.cells), plan.suite.seeds)
    noise, machine, luck = _noise(design, generator, shape), generator.normal(0, 0.001, shape), generator.random(shape)
    shared = np.exp(generator.normal(0, design.seed_spread, shape[1]))
    budget = _budget(design)
    found = []
    for place, (cell, repeat) in enumerate(plan.order):
        ours = plan.cells[cell].cell_id == candidate
        samples, speed = (noise[cell, repeat], 0.0) if design.within == "samples" else (0.0, noise[cell, repeat])
        crossing = TYPICAL_SAMPLES * shared[repeat] * (design.ratio if ours else 1.0) * math.exp(samples)
        if design.missed_by != "budget" and luck[cell, repeat] < design.missed:
            crossing = math.inf
        slower = (1 + design.shift) * (1 + design.drift * place / max(1, len(plan.order) - 1))
        pace = SECONDS_PER_SAMPLE * math.exp(speed + machine[cell, repeat]) * slower
        distance = max(1, round(TYPICAL_SAMPLES * design.grids[0 if ours else 1]))
        ends: Literal["missed", "diverged"] = "diverged" if design.missed_by == "diverged" else "missed"
        found.append(_result(plan.cells[cell].cell_id, repeat, seeds, _Trial(crossing, pace, distance, budget, ends)))
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


def _result(cell_id: str, repeat: int, seeds: str, trial: _Trial) -> Result:
    """Return the result of a trial evaluated at every multiple of its distance up to its budget."""
    last = max(1, trial.budget // trial.distance)
    reached = math.isfinite(trial.crossing) and math.ceil(trial.crossing / trial.distance) <= last
    hit = trial.distance * max(1, math.ceil(trial.crossing / trial.distance)) if reached else trial.distance * last
    wall, train = hit * trial.seconds_per_sample, 0.9 * hit * trial.seconds_per_sample
    base: dict[str, Any] = {
        "trial_id": f"{cell_id}-s{repeat}", "cell_id": cell_id, "repeat": repeat, "attempt": 1, "samples": hit,
        "run_seconds": wall, "samples_per_second": hit / wall, "train_samples_per_second": hit / train,
        "curve": _curve(trial, hit, reached),
        "hashes": {"init_weights": f"w-{seeds}{repeat}", "data_order": f"o-{seeds}{repeat}", "data": "d"},
    }
    if not reached:
        return Result(**base, status=trial.ends, reason="simulated")
    miss = hit - trial.distance
    bracket = Bracket(miss_samples=miss, hit_samples=hit, miss_wall_seconds=miss * trial.seconds_per_sample,
                      hit_wall_seconds=wall)
    return Result(**base, status="ok", tta_wall=wall, tta_train=train, tta_cold=wall + 3, samples_to_target=hit,
                  bracket=bracket)


def _curve(trial: _Trial, end: int, reached: bool) -> tuple[Point, ...]:
    if trial.distance < CURVES_FROM * TYPICAL_SAMPLES:
        return ()
    pace = trial.seconds_per_sample
    return tuple(
        Point.model_construct(samples=at, epochs=at / TYPICAL_SAMPLES, wall_seconds=at * pace,
                              train_seconds=0.9 * at * pace, value=0.95 if reached and at == end else 0.5,
                              train_loss=None)
        for at in range(trial.distance, end + 1, trial.distance))


def paired_p(plan: Plan, results: list[Result]) -> float | None:
    """Return p of the paired t test of the log times; None if a trial has no time."""
    from repro import stats

    sides = [{item.repeat: item.tta_wall for item in results if item.cell_id == cell} for cell in places_of(plan)]
    pairs = [(sides[0][repeat], sides[1][repeat]) for repeat in sorted(sides[0])]
    if any(value is None for pair in pairs for value in pair):
        return None
    return stats.or_none(lambda: stats.paired_p([ours or 0 for ours, _ in pairs], [theirs or 0 for _, theirs in pairs]))
