"""A figure by seed, in the middle and with its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence

from repro import stats
from repro.core.frozen import Frozen


class Estimated(Frozen):
    """A figure by seed of a run, in the middle and with the 95 % t interval of its logarithm over the seeds."""

    value: float
    low: float | None
    high: float | None


def estimated(values: Sequence[float]) -> Estimated:
    """Return the geometric mean of `values` with its interval; without one for a single or always equal value."""
    logs = [math.log(value) for value in values]
    if len(logs) < 2 or len(set(logs)) == 1:
        return Estimated(value=values[0], low=None, high=None)
    found = stats.mean_interval(logs)
    return Estimated(value=math.exp(sum(logs) / len(logs)), low=math.exp(found.low), high=math.exp(found.high))
