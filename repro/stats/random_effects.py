"""Estimates of several independent experiments together, when their true effects may differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from repro.stats.interval import Interval
from repro.stats.sample import at_least, check_level, finite, positive

LEAST = 3
"""Fewest experiments of which a prediction interval exists; the interval of two has one degree of freedom."""


@dataclass(frozen=True, slots=True)
class RandomEffects:
    """The mean effect over a population of experiments."""

    count: int
    mean: float
    deviation: float
    """Standard error of the mean by Hartung and Knapp."""
    interval: Interval
    """Of the mean. At least as wide as without Hartung and Knapp's factor: that may fall below 1 by chance."""
    heterogeneity: float
    """Cochran's Q."""
    heterogeneity_p: float
    between: float
    """tau: the standard deviation of the true effects (DerSimonian and Laird)."""
    inconsistent: float
    """I^2: the share of the variation that is between experiments, 0 to 1."""
    prediction: Interval | None
    """Of the true effect of another experiment; None: too few."""


def random_effects(effects: Sequence[float], variances: Sequence[float], level: float = 0.95) -> RandomEffects:
    """Return the random-effects estimate of independent experiments.

    DerSimonian & Laird (1986) for the variance between them; Hartung & Knapp (2001) for the interval, Student's t with
    k - 1 degrees, whose factor is at least 1 as Roever, Knapp & Friede (2015) propose. The prediction interval is that
    of Higgins, Thompson & Spiegelhalter (2009), Student's t with k - 2 degrees, which covers 88 % where tau is easily
    taken for 0; so it is at least as wide as that of one more value of the effects as they are.

    Args:
        effects: one for each experiment.
        variances: of each effect, squares of its standard error.

    Raises:
        ValueError: fewer than two experiments, a value that is not finite, or a variance that is not positive.
    """
    from scipy.stats import chi2
    from scipy.stats import t as student

    check_level(level)
    found, spread = at_least(finite(effects, "effects"), 2, "a common estimate"), positive(variances)
    if len(found) != len(spread):
        raise ValueError(f"effects and variances need one length, not {len(found)} and {len(spread)}")
    count, fixed = len(found), 1 / spread
    q = float(np.sum(fixed * (found - np.sum(fixed * found) / np.sum(fixed)) ** 2))
    scale = float(np.sum(fixed) - np.sum(fixed**2) / np.sum(fixed))
    between = max(0.0, (q - (count - 1)) / scale)
    weights = 1 / (spread + between)
    mean = float(np.sum(weights * found) / np.sum(weights))
    plain = 1 / float(np.sum(weights))
    knapp = float(np.sum(weights * (found - mean) ** 2)) / (count - 1) * plain
    half = float(student.ppf(0.5 + level / 2, count - 1)) * math.sqrt(max(knapp, plain))
    reach = None if count < LEAST else max(
        float(student.ppf(0.5 + level / 2, count - 2)) * math.sqrt(between + max(knapp, plain)),
        float(student.ppf(0.5 + level / 2, count - 1)) * math.sqrt(float(found.var(ddof=1)) * (1 + 1 / count)))
    return RandomEffects(
        count, mean, math.sqrt(knapp), Interval(mean - half, mean + half, level), q, float(chi2.sf(q, count - 1)),
        math.sqrt(between), max(0.0, (q - (count - 1)) / q) if q > 0 else 0.0,
        None if reach is None else Interval(mean - reach, mean + reach, level))
