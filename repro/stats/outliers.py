"""Values that stand apart from the rest. They are marked, never removed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from repro.stats.sample import FLAT, positive

LIMIT = 3.5
"""Modified z score beyond which a value is marked (Iglewicz & Hoaglin 1993)."""
LEAST = 5


def outlier_marks(values: Sequence[float]) -> list[bool]:
    """Which values to look at, in the order given: modified z score on logs, 0.6745 |x - median| / MAD above 3.5.

    Fewer than five values mark nothing. Where more than half of the values are alike the MAD is 0, and the mean
    absolute deviation x 1.2533 stands for it (the same source). A mark is a question, not a test: at n = 5
    it falls on values of normal logs without any outlier too (docs/method.md says how often).

    Raises:
        ValueError: a value is not positive and finite.
    """
    logs = np.log(positive(values))
    if len(logs) < LEAST:
        return [False] * len(logs)
    away = np.abs(logs - np.median(logs))
    scale = float(np.median(away)) / 0.6745
    if scale <= FLAT:
        scale = 1.253314 * float(np.mean(away))
    if scale <= FLAT:
        return [False] * len(logs)
    return [bool(mark) for mark in away / scale > LIMIT]
