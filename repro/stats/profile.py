"""Summaries over many workloads: geometric means of ratios, performance profiles and their areas."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from repro.stats.sample import at_least, finite, positive


def geometric_mean(ratios: Sequence[float]) -> float:
    """Return the mean for ratios (Fleming & Wallace 1986): swapping cell and baseline inverts it.

    Raises:
        ValueError: no ratio, or one not positive and finite.
    """
    return math.exp(float(np.mean(np.log(at_least(positive(ratios, "ratios"), 1, "a geometric mean")))))


def performance_profile(
    times: Mapping[str, Mapping[str, float | None]], taus: Sequence[float]
) -> dict[str, tuple[float, ...]]:
    """Return the share of workloads that each system solves within tau times the best system's time (Dolan & More 2002,
    eq. 2.1).

    Args:
        times: system -> workload -> seconds. A workload that is None or absent for a system was not solved by it: it is
            within no tau, but stays in the denominator, as does a workload without any solution.
        taus: factors, each at least 1.

    Returns:
        system -> one share per tau, in the order of `taus`.

    Raises:
        ValueError: no system, no workload, a time not positive and finite, a tau below 1.
    """
    workloads = sorted({name for row in times.values() for name in row})
    if not times or not workloads:
        raise ValueError("a performance profile needs at least one system and one workload")
    if any(tau < 1 for tau in finite(taus, "taus")):
        raise ValueError("taus are at least 1, the best system's own time")
    solved = {system: {name: _seconds(value, system, name) for name, value in row.items() if value is not None}
              for system, row in times.items()}
    best = {name: min((row[name] for row in solved.values() if name in row), default=math.inf) for name in workloads}
    return {system: tuple(sum(name in row and row[name] <= tau * best[name] for name in workloads) / len(workloads)
                          for tau in taus)
            for system, row in solved.items()}


def profile_score(times: Mapping[str, Mapping[str, float | None]], tau_max: float) -> dict[str, float]:
    """Return the area under each system's profile from 1 to tau_max over tau_max - 1 (AlgoPerf, Dahl et al. 2023, whose
    tau_max is 4; exact here, by trapezia over 100 points there): 1 for a system that is best everywhere, 0 for one
    that solves nothing within tau_max.

    Args:
        times: as `performance_profile`.

    Raises:
        ValueError: as `performance_profile`, or tau_max is not above 1.
    """
    if not (math.isfinite(tau_max) and tau_max > 1):
        raise ValueError(f"tau_max is a finite factor above 1, not {tau_max}")
    performance_profile(times, [1.0])
    workloads = {name for row in times.values() for name in row}
    solved = {system: {name: value for name, value in row.items() if value is not None}
              for system, row in times.items()}
    best = {name: min((row[name] for row in solved.values() if name in row), default=math.inf) for name in workloads}
    return {system: math.fsum(max(0.0, tau_max - value / best[name]) for name, value in row.items())
            / (len(workloads) * (tau_max - 1)) for system, row in solved.items()}


def _seconds(value: float, system: str, workload: str) -> float:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"the time of {system} on {workload} must be a positive finite number, not {value}")
    return value
