"""Orders of execution: what a drifting machine does to a comparison of a cell with itself."""

from __future__ import annotations

import numpy as np
from scipy.stats import ttest_1samp

from repro.suite.model import Suite
from repro.suite.planning.plan import execution_order

CELLS, SEEDS, EXPERIMENTS, CV = 4, 10, 1500, 0.01
SUITE = Suite(suite="sample", seeds=SEEDS, trial={})


def slots(seed: int) -> np.ndarray:
    """(repeat, cell) -> the place of its trial in the run."""
    found = np.empty((SEEDS, CELLS))
    for place, (cell, repeat) in enumerate(execution_order(SUITE, CELLS, seed)):
        found[repeat, cell] = place
    return found


def errors(places: np.ndarray, drift: float, one: int, other: int) -> float:
    """Share of experiments that find a difference between two equal cells at 5 %."""
    noise = np.random.default_rng(3).normal(0, CV, (EXPERIMENTS, SEEDS, CELLS))
    times = noise + np.log1p(drift * places / (SEEDS * CELLS))
    return float((ttest_1samp(times[:, :, one] - times[:, :, other], 0, axis=1).pvalue <= 0.05).mean())


def test_orders_that_are_drawn_keep_the_level_and_one_for_all_runs_does_not() -> None:
    drawn = np.stack([slots(seed) for seed in range(EXPERIMENTS)])
    limit = 0.05 + 3.3 * (0.05 * 0.95 / EXPERIMENTS) ** 0.5
    assert max(errors(drawn, drift, 0, 1) for drift in (0.0, 0.1, 0.3)) <= limit
    fixed = slots(20151102)  # of method 1.0, in every run of a suite
    assert max(errors(fixed, 0.3, one, other) for one in range(CELLS) for other in range(one)) > 0.15
