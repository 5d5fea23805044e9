"""Trend of times in the order in which they were taken: Kendall's rank correlation, exact at small n."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import numpy as np

from repro.stats.sample import FLAT, at_least, finite

LEAST = 4
"""Fewer cannot show any trend; four give p = 0.083 at best, five 0.017."""
ENUMERATED = 7
"""Values up to which ties are counted over all n! orders."""


def order_trend(order: Sequence[float], logs: Sequence[float]) -> tuple[float, float]:
    """Return (Kendall's tau-b of the logs against the order, two-sided p).

    Without ties p is exact for any n (Kendall 1938); with ties it counts all orders up to 7 values and is the normal
    approximation with tie correction beyond.

    Raises:
        ValueError: lengths differ, fewer than four values, one not finite, or a side whose values are all equal.
    """
    from scipy.stats import kendalltau

    places, values = finite(order, "order"), finite(logs, "logs")
    if len(places) != len(values):
        raise ValueError(f"order and logs need one length, not {len(places)} and {len(values)}")
    at_least(values, LEAST, "a trend")
    values = _rounded(values)
    if len(np.unique(places)) < 2 or len(np.unique(values)) < 2:
        raise ValueError("a trend needs values that differ")
    tied = len(np.unique(places)) < len(places) or len(np.unique(values)) < len(values)
    found = kendalltau(places, values, method="asymptotic" if tied else "exact")
    if tied and len(values) <= ENUMERATED:
        return float(found.statistic), _enumerated(places, values)
    return float(found.statistic), min(1.0, float(found.pvalue))


def _rounded(values: np.ndarray) -> np.ndarray:
    """Return ranks; values that differ only by rounding get the same."""
    steps = np.diff(np.sort(values), prepend=-np.inf) > FLAT * max(1.0, float(np.max(np.abs(values))))
    ranks = np.empty(len(values))
    ranks[np.argsort(values, kind="stable")] = np.cumsum(steps)
    return ranks


def _enumerated(places: np.ndarray, values: np.ndarray) -> float:
    """Return the share of all orders whose |concordant - discordant pairs| is at least the one seen."""
    first, second = np.triu_indices(len(values), 1)
    direction = np.sign(places[second] - places[first])
    orders = values[np.array(list(permutations(range(len(values)))))]
    sums = np.abs(np.sign(orders[:, second] - orders[:, first]) @ direction)
    return float(np.mean(sums >= sums[0] - 0.5))
