"""Checks of a sample: every function of this package takes a flat array of finite numbers, or refuses it."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")
FLAT = 1e-12
"""Standard deviation of logs below which all differences are rounding."""


def finite(values: Sequence[float], what: str = "values") -> np.ndarray:
    """Return a one-dimensional float array.

    Raises:
        ValueError: not one list, or a value is NaN or infinite.
    """
    array = np.asarray(values, dtype=float)
    if array.ndim != 1:
        raise ValueError(f"{what} must be one list of numbers, not of shape {array.shape}")
    if not np.all(np.isfinite(array)):
        raise ValueError(f"{what} must be finite numbers")
    return array


def positive(values: Sequence[float], what: str = "values") -> np.ndarray:
    """Return the array of `finite`, whose values are above zero.

    Raises:
        ValueError: as `finite`, or a value is zero or negative.
    """
    array = finite(values, what)
    if np.any(array <= 0):
        raise ValueError(f"{what} must be positive finite numbers")
    return array


def at_least(array: np.ndarray, least: int, what: str) -> np.ndarray:
    """Return the array itself.

    Raises:
        ValueError: it has fewer than `least` values.
    """
    if len(array) < least:
        raise ValueError(f"{what} needs at least {least} values, not {len(array)}")
    return array


def check_level(level: float) -> float:
    """Return the coverage itself.

    Raises:
        ValueError: it is not between 0 and 1.
    """
    if not 0 < level < 1:
        raise ValueError(f"a level must be between 0 and 1, not {level}")
    return level


def margin_edge(margin: float) -> float:
    """Return the log of 1 + margin, the largest log ratio that is within it.

    Raises:
        ValueError: the margin is not a positive finite number.
    """
    if not (margin > 0 and math.isfinite(margin)):
        raise ValueError(f"a margin is a positive number, 0.05 for 5 %, not {margin}")
    return math.log1p(margin)


def mean(array: np.ndarray) -> float:
    """Return the mean of at least one value; numpy's own spends most of its time on what only larger arrays need."""
    return float(array.sum()) / len(array)


def deviation(array: np.ndarray) -> float:
    """Return the standard deviation of a sample of at least two values (n - 1)."""
    apart = array - mean(array)
    return math.sqrt(float((apart * apart).sum()) / (len(array) - 1))


def spread(logs: np.ndarray, what: str) -> float:
    """Return the standard deviation of a sample.

    Raises:
        ValueError: fewer than two values, or they differ only by rounding: an interval of no width would claim
            certainty.
    """
    found = deviation(at_least(logs, 2, what))
    if found <= FLAT * max(1.0, float(np.max(np.abs(logs)))):
        raise ValueError(f"{what} needs values that differ; without a spread it would claim certainty")
    return found


def or_none(function: Callable[[], T]) -> T | None:
    """Return a figure, or None if its method refuses these data (ValueError)."""
    try:
        return function()
    except ValueError:
        return None


def least(enough: Callable[[int], bool], low: int, high: int) -> int | None:
    """Return the smallest number from `low` to `high` for which `enough` holds; it holds for all larger ones."""
    return low + bisect_left(range(low, high), True, key=enough) if enough(high) else None
