"""Description of one sample: how much it varies, which values are outliers, how normal it looks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from repro.stats.sample import FLAT, at_least, finite, positive

OUTLIER_LIMIT = 3.5
"""Modified z score beyond which a value is marked (Iglewicz & Hoaglin 1993)."""
LEAST_VALUES = 5


def coefficient_of_variation(values: Sequence[float]) -> float:
    """Return the standard deviation (n - 1) over the mean, of positive values; 0 if all are equal.

    Raises:
        ValueError: fewer than two values, or one not positive and finite.
    """
    array = at_least(positive(values), 2, "a coefficient of variation")
    return float(np.std(array, ddof=1) / np.mean(array))


def outlier_marks(values: Sequence[float]) -> list[bool]:
    """Mark the values to look at, in the order given: modified z score on logs, 0.6745 |x - median| / MAD, above 3.5.

    Below five values none is marked. If more than half of the values are equal, the MAD is 0 and the mean absolute
    deviation x 1.2533 replaces it (the same source). A mark is a question, not a test: at n = 5 it also falls on normal
    logs without any outlier (docs/method.md says how often).

    Raises:
        ValueError: a value is not positive and finite.
    """
    logs = np.log(positive(values))
    if len(logs) < LEAST_VALUES:
        return [False] * len(logs)
    away = np.abs(logs - np.median(logs))
    scale = float(np.median(away)) / 0.6745
    if scale <= FLAT:
        scale = 1.253314 * float(np.mean(away))
    if scale <= FLAT:
        return [False] * len(logs)
    return [bool(mark) for mark in away / scale > OUTLIER_LIMIT]


def shapiro_p(values: Sequence[float]) -> float:
    """p of Shapiro and Wilk's test that the values are normal (Biometrika 52, 1965); a small p speaks against it.

    With few values it detects only gross departures.

    Raises:
        ValueError: fewer than 3 values, one is not finite, or they are equal.
    """
    from scipy.stats import shapiro

    found = finite(values)
    if len(found) < 3:
        raise ValueError(f"{len(found)} values; 3 are the least for a test of normality")
    if float(np.ptp(found)) <= 1e-12 * max(1.0, float(np.max(np.abs(found)))):
        raise ValueError("the values do not spread")
    return float(shapiro(found).pvalue)
