"""Stochastic dominance: P(A < B), ties half."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from repro.stats.interval import Interval
from repro.stats.sample import at_least, check_level, finite


def probability_less(a: Sequence[float], b: Sequence[float], level: float = 0.95) -> tuple[float, Interval]:
    """Return P(A < B) + P(A = B) / 2 for independent runs of each, with Newcombe's interval.

    The estimate is the Mann-Whitney statistic over all pairs of values. The interval is method 5 of Newcombe (2006,
    Statistics in Medicine 25:559-573): the theta that solve |found - theta| = z sd(theta), with Hanley & McNeil's
    variance in which both sample sizes less one are replaced by (m + n) / 2 - 1. It stays inside 0 to 1 and has width
    at 0 and 1.

    Raises:
        ValueError: fewer than two values on a side, or one not finite.
    """
    from scipy.special import ndtri

    check_level(level)
    first, second = at_least(finite(a), 2, "P(A < B)"), at_least(finite(b), 2, "P(A < B)")
    signs = np.sign(second[None, :] - first[:, None])
    found = (float(signs.sum()) / signs.size + 1) / 2
    z = float(ndtri(0.5 + level / 2))
    low = _edge(found, z, len(first), len(second))
    high = 1 - _edge(1 - found, z, len(first), len(second))
    return found, Interval(low, high, level)


def _edge(found: float, z: float, m: int, n: int) -> float:
    """Return the smallest theta from which `found` is at most z standard deviations away."""
    from scipy.optimize import brentq

    if found <= 0:
        return 0.0

    def excess(theta: float) -> float:
        middle = (m + n) / 2 - 1
        shape = 1 + middle * ((1 - theta) / (2 - theta) + theta / (1 + theta))
        return found - theta - z * math.sqrt(max(0.0, theta * (1 - theta) * shape / (m * n)))

    # For found = 1, theta = 1 is a second, unwanted solution.
    return float(brentq(excess, 0.0, min(found, 1 - 1e-12)))
