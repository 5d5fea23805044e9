"""Whether values look as if drawn from a normal distribution: a diagnostic, never a proof."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from repro.stats.sample import finite


def shapiro_p(values: Sequence[float]) -> float:
    """p of Shapiro and Wilk's test that the values are normal (Biometrika 52, 1965); small: they are not.

    With few values it sees gross departures only.

    Raises:
        ValueError: fewer than 3 values, one is not finite, or they do not spread.
    """
    from scipy.stats import shapiro

    found = finite(values)
    if len(found) < 3:
        raise ValueError(f"{len(found)} values; 3 are the least for a test of normality")
    if float(np.ptp(found)) <= 1e-12 * max(1.0, float(np.max(np.abs(found)))):
        raise ValueError("the values do not spread")
    return float(shapiro(found).pvalue)
