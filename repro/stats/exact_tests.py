"""Tests by signs, ranks and orders, the smallest p they allow, and Holm's correction of many tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import permutations
from typing import Any

import numpy as np

from repro.stats.interval import Interval
from repro.stats.sample import FLAT, at_least, check_level, finite

EXACT_PAIRS = 20
"""Pairs up to which all 2^n flips are counted."""
GRID = 2**16
"""Steps of the grid on which the magnitudes of more pairs are rounded, from 0 to their sum."""


def sign_flip_floor(pairs: int) -> float:
    """Return the smallest two-sided p that the exact sign-flip test can give with this many pairs: 2 / 2^n."""
    return min(1.0, 2.0 ** (1 - pairs))


def sign_flip(logs: Sequence[float], limit: int = EXACT_PAIRS) -> float:
    """Return the two-sided exact sign-flip permutation p of mean log ratio = 0 (Fisher); up to `limit` pairs, all 2^n
    flips.

    Raises:
        ValueError: no pairs, more than `limit`, or a log that is not finite.
    """
    values = finite(logs, "logs of ratios")
    if not 0 < len(values) <= limit:
        raise ValueError(f"the exact test takes 1 to {limit} pairs, not {len(values)}")
    magnitudes = np.abs(values)
    # Sums of the same values in another order differ by rounding, which grows with the values, not with their sum.
    edge = abs(float(values.sum())) - 1e-12 * float(magnitudes.sum())
    if edge <= 0:
        return 1.0
    # Every sum of all is one of the first half's plus one of the second's: 2^(n/2) sums and a look-up each, not 2^n.
    half = len(magnitudes) // 2
    first, second = (np.sort(signed_sums(part)) for part in (magnitudes[:half], magnitudes[half:]))
    above = len(second) - np.searchsorted(second, edge - first, side="left")
    below = np.searchsorted(second, -edge - first, side="right")
    return float(above.sum() + below.sum()) / 2.0 ** len(magnitudes)


def sign_flip_any(logs: Sequence[float]) -> float:
    """Return the two-sided sign-flip p of any number of pairs: exact up to 20; beyond that exact for the magnitudes
    rounded to a grid, whose sums are counted by convolution. Equal sums may be rounded apart, so those a few steps
    short count too. Nothing is drawn.

    Raises:
        ValueError: as `sign_flip`, except for more pairs.
    """
    values = finite(logs, "logs of ratios")
    total = float(np.abs(values).sum())
    if len(values) <= EXACT_PAIRS:
        return sign_flip(logs)
    if total == 0:
        return 1.0
    steps = np.rint(values / total * max(GRID, 16 * len(values))).astype(int)
    middle = int(np.abs(steps).sum())
    edge = max(0, abs(int(steps.sum())) - 2 * math.isqrt(len(values)))
    chances = np.zeros(2 * middle + 1)
    chances[middle] = 1.0
    for step in np.abs(steps).tolist():  # no sum is beyond the ends, so nothing rolls over them
        chances = (np.roll(chances, step) + np.roll(chances, -step)) / 2
    return min(1.0, 2 * float(chances[middle + edge:].sum()))


def signed_sums(magnitudes: np.ndarray) -> np.ndarray:
    """Return all 2^n sums of the values with either sign; the first has every plus, the last every minus."""
    sums = np.zeros(2 ** len(magnitudes))
    for size, value in zip(2 ** np.arange(len(magnitudes)), magnitudes, strict=True):
        np.subtract(sums[:size], value, out=sums[size:2 * size])
        sums[:size] += value
    return sums


def pairs_to_survive(contrasts: int, alpha: float = 0.05) -> int:
    """Return the fewest pairs whose exact floor is significant as the smallest p of Holm over the contrasts (6 -> 8).

    Raises:
        ValueError: no contrast, or alpha outside (0, 1).
    """
    if contrasts < 1 or not 0 < alpha < 1:
        raise ValueError(f"needs at least one contrast and an alpha between 0 and 1, not {contrasts} and {alpha}")
    pairs = 1
    while contrasts * sign_flip_floor(pairs) > alpha:
        pairs += 1
    return pairs


def holm(ps: Sequence[float]) -> list[float]:
    """Return adjusted p values in the order given (Holm 1979): significant at alpha if at most alpha.

    Raises:
        ValueError: a p outside 0 to 1.
    """
    values = finite(ps, "p values").tolist()
    if any(not 0 <= p <= 1 for p in values):
        raise ValueError("p values must be between 0 and 1")
    adjusted, highest = [0.0] * len(values), 0.0
    for rank, index in enumerate(sorted(range(len(values)), key=lambda place: values[place])):
        highest = max(highest, min(1.0, (len(values) - rank) * values[index]))
        adjusted[index] = highest
    return adjusted


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
    if not tied or len(values) > ENUMERATED:
        return float(found.statistic), min(1.0, float(found.pvalue))
    first, second = np.triu_indices(len(values), 1)
    direction = np.sign(places[second] - places[first])
    orders = values[np.array(list(permutations(range(len(values)))))]
    sums = np.abs(np.sign(orders[:, second] - orders[:, first]) @ direction)  # |concordant - discordant pairs|
    return float(found.statistic), float(np.mean(sums >= sums[0] - 0.5))


def lane_trend(lanes: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return (Kendall's tau within lanes, two-sided p) of the logs of several lanes, each in its order.

    Only values of one lane are compared with each other, and under the null every lane's orders are equally likely: the
    discordant pairs of all lanes are a sum of independent counts, whose distribution is exact without ties (Kendall
    1938, convolved), and normal with tie correction otherwise. One lane is tested by `order_trend`.

    Raises:
        ValueError: fewer than four values in lanes of several, one not finite, or no lane with values that differ.
    """
    from scipy.special import ndtr

    shared = [_rounded(finite(lane, "logs")) for lane in lanes if len(lane) > 1]
    if len(shared) < 2:
        lane = next((lane for lane in lanes if len(lane) > 1), ())
        return order_trend(list(range(len(lane))), lane)
    at_least(np.concatenate(shared), LEAST, "a trend")
    score = pairs = squares = 0.0
    tied, chances = False, np.ones(1)
    for ranks in shared:
        count = len(ranks)
        first, second = np.triu_indices(count, 1)
        score += float(np.sign(ranks[second] - ranks[first]).sum())
        pairs += len(first)
        repeats = np.unique(ranks, return_counts=True)[1]
        tied |= bool((repeats > 1).any())
        squares += (_kendall(count) - float(_kendall(repeats).sum())) / 18
        for size in range(2, count + 1):
            chances = np.convolve(chances, np.full(size, 1 / size))
    if squares == 0:
        raise ValueError("a trend needs values that differ")
    if tied:
        return score / pairs, min(1.0, 2 * float(ndtr((1 - abs(score)) / math.sqrt(squares))))
    fewest = round((pairs - abs(score)) / 2)
    return score / pairs, min(1.0, 2 * float(chances[:fewest + 1].sum()))


def _kendall(count: Any) -> Any:
    return count * (count - 1) * (2 * count + 5)


def _rounded(values: np.ndarray) -> np.ndarray:
    """Return ranks; values that differ only by rounding get the same."""
    steps = np.diff(np.sort(values), prepend=-np.inf) > FLAT * max(1.0, float(np.max(np.abs(values))))
    ranks = np.empty(len(values))
    ranks[np.argsort(values, kind="stable")] = np.cumsum(steps)
    return ranks
