"""Medians, profiles and scores of many resamples of the seeds at once, and the percentile intervals of such draws.

The caller draws the resamples; nothing here is random. The last axis of every array is the draw.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from repro.stats.interval import Interval
from repro.stats.sample import check_level


def censored_median(outcomes: Sequence[float | None]) -> float:
    """Return the median time of runs of which those that are None took longer than all others: infinite unless more
    than half reached the target.

    Raises:
        ValueError: no run, or a time not positive and finite.
    """
    return float(resampled_medians(outcomes, np.arange(len(outcomes))[None, :])[0])


def resampled_medians(outcomes: Sequence[float | None], picks: np.ndarray) -> np.ndarray:
    """Return the median of each resample, as `censored_median`; shape (draws,).

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
    """Return the share of workloads within each tau; shape (systems, taus, draws). `ratios`: of `ratios_to_best`."""
    return np.stack([(ratios <= tau).mean(axis=1) for tau in taus], axis=1)


def profile_scores(ratios: np.ndarray, tau_max: float) -> np.ndarray:
    """Return the areas under the profiles, as `profile.profile_score`; shape (systems, draws)."""
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
