"""Exact tests of pairs: all possible signs, the smallest p they allow, and Holm's correction of many tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from repro.stats.sample import finite

EXACT_PAIRS = 20
"""Pairs up to which all 2^n flips are counted."""


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
    first, second = (np.sort(_signed_sums(part)) for part in (magnitudes[:half], magnitudes[half:]))
    above = len(second) - np.searchsorted(second, edge - first, side="left")
    below = np.searchsorted(second, -edge - first, side="right")
    return float(above.sum() + below.sum()) / 2.0 ** len(magnitudes)


def _signed_sums(magnitudes: np.ndarray) -> np.ndarray:
    """Return all 2^n sums of the values with either sign."""
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
