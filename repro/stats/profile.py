"""Systems over many workloads: medians with misses, performance profiles, their areas, means of ratios, and intervals.

Arrays hold one figure a draw in their last axis: one draw for the figures themselves, many for resamples of the seeds,
which the caller draws; nothing here is random.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from repro.stats.interval import Interval
from repro.stats.sample import check_level


def resampled_medians(outcomes: Sequence[float | None], picks: np.ndarray) -> np.ndarray:
    """Return the median time of each resample, in which a run that is None took longer than all others: infinite unless
    more than half reached the target; shape (draws,).

    Args:
        outcomes: one time per run, None for a miss.
        picks: (draws, runs): the runs of each resample, by index.

    Raises:
        ValueError: no run, or a time not positive and finite.
    """
    times = np.array([math.inf if value is None else value for value in outcomes], dtype=float)
    if not len(times) or any(value is not None and not (math.isfinite(value) and value > 0) for value in outcomes):
        raise ValueError("a median to the target needs runs whose times are positive finite numbers, or None")
    ordered = np.sort(times[picks], axis=1)
    count = len(times)
    found: np.ndarray = (ordered[:, (count - 1) // 2] + ordered[:, count // 2]) / 2
    return found


def ratios_to_best(times: np.ndarray) -> np.ndarray:
    """Return every system's time over the best system's on each workload; infinite where it missed.

    Args:
        times: (systems, workloads, draws), infinite for a miss.
    """
    best = times.min(axis=0)
    safe = np.where(np.isfinite(best), best, 1.0)
    found: np.ndarray = np.where(np.isfinite(times), times / safe, math.inf)
    return found


def profiles(ratios: np.ndarray, taus: Sequence[float]) -> np.ndarray:
    """Return the share of workloads that each system solves within tau times the best system's time (Dolan & More 2002,
    eq. 2.1); shape (systems, taus, draws). A workload that a system missed is within no tau, but stays in the
    denominator.

    Args:
        ratios: of `ratios_to_best`.
        taus: factors, each at least 1.
    """
    return np.stack([(ratios <= tau).mean(axis=1) for tau in taus], axis=1)


def profile_scores(ratios: np.ndarray, tau_max: float) -> np.ndarray:
    """Return the area under each system's profile from 1 to tau_max over tau_max - 1 (AlgoPerf, Dahl et al. 2023, whose
    tau_max is 4; exact here, by trapezia over 100 points there): 1 for a system that is best everywhere, 0 for one
    that solves nothing within tau_max; shape (systems, draws).

    Raises:
        ValueError: tau_max is not above 1.
    """
    if not (math.isfinite(tau_max) and tau_max > 1):
        raise ValueError(f"tau_max is a finite factor above 1, not {tau_max}")
    found: np.ndarray = np.maximum(0.0, tau_max - ratios).mean(axis=1) / (tau_max - 1)
    return found


def mean_ratios(times: np.ndarray, reference: int) -> np.ndarray:
    """Return the geometric mean over workloads of each system's time over the reference's; shape (systems, draws).

    Infinite where the system missed a workload, NaN where the reference did.
    """
    with np.errstate(invalid="ignore"):
        logs = np.log(times) - np.log(times[reference])
    logs = np.where(np.isfinite(times[reference]), logs, math.nan)
    found: np.ndarray = np.exp(logs.mean(axis=1))
    return found


def percentile_interval(draws: np.ndarray, level: float = 0.95) -> Interval:
    """Return the interval without the same number of draws at both ends; draws may be infinite.

    Raises:
        ValueError: no draw, or one is NaN.
    """
    if not draws.size or np.isnan(draws).any():
        raise ValueError("a percentile interval needs draws that are numbers")
    ordered = np.sort(draws)
    without = int((1 - check_level(level)) / 2 * len(ordered) + 1e-9)
    return Interval(float(ordered[without]), float(ordered[len(ordered) - 1 - without]), level)
