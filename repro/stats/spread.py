"""How much a sample varies beside its mean."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from repro.stats.sample import at_least, positive


def coefficient_of_variation(values: Sequence[float]) -> float:
    """Standard deviation (n - 1) over mean, of positive values; 0 where all are alike.

    Raises:
        ValueError: fewer than two values, or one not positive and finite.
    """
    array = at_least(positive(values), 2, "a coefficient of variation")
    return float(np.std(array, ddof=1) / np.mean(array))
