"""Error rates of the complete path from results to verdicts without a difference: fixed seeds, many runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from repro.compare import DECIDED, compare, contrast
from repro.core.machine import Machine
from repro.record.result.results import Result
from repro.suite.planning.plan import Plan
from tests.made_cells import BASELINE, CANDIDATE, result, trials
from tests.plans import planned
from tests.records import SUITE

RUNS = 300
FEWER_RUNS = 100
"""Number of complete plans in the tests that always run."""
DIFFERENT = {"faster", "slower"}
Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
DRAWS: dict[str, Draw] = {
    "log-normal": lambda rng, shape: rng.lognormal(0, 0.2, shape),
    "gamma": lambda rng, shape: rng.gamma(4.0, 0.25, shape),
    "grid": lambda rng, shape: np.ceil(rng.lognormal(2, 0.2, shape)) + rng.normal(0, 0.01, shape),
}


def allowed(rate: float, runs: int) -> int:
    """Most hits that a true rate still gives in 999 of 1000 simulations."""
    from scipy.stats import binom

    return int(binom.ppf(0.999, runs, rate))


def plan_of(folder: Path, seeds: int) -> Plan:
    return planned(folder, SUITE.replace("seeds: 6", f"seeds: {seeds}"), machine=Machine("cpu", 0, 8))


@pytest.mark.parametrize(("name", "runs"), [("log-normal", FEWER_RUNS), *(
    pytest.param(name, RUNS, marks=pytest.mark.slow) for name in DRAWS)])
def test_false_positives_through_compare_and_holm(name: str, runs: int, tmp_path: Path) -> None:
    plan, rng = plan_of(tmp_path, 10), np.random.default_rng(20151102)
    order = list(plan.trials())
    alone = family = 0
    for _ in range(runs):
        seeds = rng.lognormal(0, 0.3, 10)  # what all cells share in one seed
        values = DRAWS[name](rng, (len(order),))
        found = compare(plan, [
            Result(trial_id=item.trial_id, cell_id=item.cell_id, repeat=item.repeat, attempt=1, status="ok",
                   tta_wall=float(value * seeds[item.repeat])) for item, value in zip(order, values, strict=True)])
        assert [item.primary for item in found] == [True, False, False, False]
        alone += found[0].verdict in DIFFERENT
        family += any(item.verdict in DIFFERENT for item in found[1:])
    print(f"{name}: primary {alone / runs:.3f}, any of the family {family / runs:.3f} of {runs}")
    assert alone <= allowed(0.05, runs)
    assert family <= allowed(0.05, runs)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "share"), [(8, 0.1), (8, 0.3), (20, 0.3)])
def test_false_positives_with_missed_runs(n: int, share: float) -> None:
    rng = np.random.default_rng(7)
    wrong = judged = 0
    for _ in range(RUNS):
        times = rng.lognormal(0, 0.3, (2, n))
        end = float(np.exp(0.3 * _normal_quantile(1 - share)))  # the same budget for both: `share` runs into it
        cells = [[result(cell, k, float(t) if t < end else None, "ok" if t < end else "missed", run_seconds=end)
                  for k, t in enumerate(row)] for cell, row in zip((CANDIDATE, BASELINE), times, strict=True)]
        found = contrast(CANDIDATE, BASELINE, *cells, "tta_wall", primary=True)
        wrong += found.verdict in DIFFERENT
        judged += found.restricted is not None
    print(f"n = {n}, {share:.0%} missed: {wrong / RUNS:.3f} of {RUNS}, {judged} with a restricted mean")
    assert judged > RUNS / 3
    assert wrong <= allowed(0.05, RUNS)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "true"), [(8, 1.05), (10, 1 / 1.05), (20, 1.05)])
def test_the_error_rate_of_same_is_five_per_cent_at_the_margin(n: int, true: float) -> None:
    rng = np.random.default_rng(11)
    wrong = equivalent = 0
    for _ in range(RUNS):
        ours, theirs = true * rng.lognormal(0, 0.02, n), rng.lognormal(0, 0.02, n)
        found = contrast(CANDIDATE, BASELINE, trials(CANDIDATE, ours.tolist()), trials(BASELINE, theirs.tolist()),
                         "tta_wall", primary=True)
        wrong += found.verdict == "same"
        equivalent += found.equivalence is not None and found.equivalence.equivalent
    print(f"n = {n}: same at the margin {wrong / RUNS:.3f}, its two tests alone {equivalent / RUNS:.3f} of {RUNS}")
    assert equivalent <= allowed(0.05, RUNS)
    assert wrong <= allowed(0.05, RUNS)


def test_a_difference_that_is_there_is_found() -> None:
    rng = np.random.default_rng(3)
    found = [contrast(CANDIDATE, BASELINE, trials(CANDIDATE, (0.8 * rng.lognormal(0, 0.05, 10)).tolist()),
                      trials(BASELINE, rng.lognormal(0, 0.05, 10).tolist()), "tta_wall", primary=True).verdict
             for _ in range(50)]
    assert found.count("faster") == 50
    assert set(found) <= set(DECIDED)


def _normal_quantile(share: float) -> float:
    from scipy.stats import norm

    found = float(norm.ppf(share))
    assert math.isfinite(found)
    return found
