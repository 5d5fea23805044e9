"""Sums of floats that are the same under every version of Python."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from functools import reduce


def plain_sum(values: Iterable[float]) -> float:
    """Add from left to right and round after each addition, as `sum` did before Python 3.12.

    Since then `sum` compensates the rounding of floats, so its last digits differ. A result that is derived from a log
    must have the same bits under every version, or verification would call an unmodified record modified.
    """
    return reduce(operator.add, values, 0.0)
