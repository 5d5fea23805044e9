"""The claim of a contest: the mean quality at the end is at least as good as a target (Student's t, one-sided)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from repro.stats.sample import finite, mean, spread

Direction = Literal["higher", "lower"]
"""Direction of better qualities: "higher" or "lower"."""


@dataclass(frozen=True, slots=True)
class QualityClaim:
    """Outcome of a one-sided test that a mean is at least as good as a target."""

    mean: float
    deviation: float
    """Standard deviation of the sample (n - 1)."""
    n: int
    p: float
    """Probability of a mean as far on the good side if the true mean were the target."""
    supported: bool
    """p is at most alpha."""


def quality_claim(
    values: Sequence[float], target: float, direction: Direction = "lower", alpha: float = 0.01
) -> QualityClaim:
    """Test the claim by Student's one-sample t test; the null hypothesis is a mean on the bad side of the target.

    Args:
        values: the quality at the end of every declared run; none may be left out.
        alpha: level of the test, declared before the runs.

    Raises:
        ValueError: fewer than two values, no spread, one not finite, or alpha out of range.
    """
    from scipy.special import stdtr

    if not 0 < alpha < 0.5:
        raise ValueError(f"alpha must be between 0 and 0.5, not {alpha}")
    if not math.isfinite(target):
        raise ValueError(f"a target must be a finite number, not {target}")
    array = finite(values, "qualities")
    deviation, middle = spread(array, "a test of a mean"), mean(array)
    statistic = (middle - target) / (deviation / math.sqrt(len(array)))
    p = float(stdtr(len(array) - 1, statistic if direction == "lower" else -statistic))
    return QualityClaim(middle, deviation, len(array), p, p <= alpha)
