"""Estimates of several independent experiments together, when their true effects may differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from repro.stats.interval import Interval, t_quantile
from repro.stats.sample import FLAT, at_least, check_level, finite, positive

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


@dataclass(frozen=True, slots=True)
class OneWay:
    """The variation of values between groups, against that within them."""

    statistic: float
    """F."""
    p: float
    between: float
    """Standard deviation of the groups' true means, by moments; 0 if they differ less than their values would allow."""


def one_way(groups: Sequence[Sequence[float]]) -> OneWay:
    """Return the F test that the true means of all groups are equal (one-way random effects, unequal sizes: Searle,
    Casella & McCulloch 1992, chapter 3).

    Raises:
        ValueError: fewer than two groups, no group of several values, one not finite, or no spread within groups.
    """
    from scipy.stats import f_oneway

    found = [finite(group, "values of a group") for group in groups]
    sizes = np.array([len(group) for group in found])
    count, total = len(found), int(sizes.sum())
    if count < 2 or total <= count or not sizes.all():
        raise ValueError("needs two groups or more, none of them empty and one of several values")
    inner = sum(float(((group - group.mean()) ** 2).sum()) for group in found) / (total - count)
    if inner <= FLAT**2:
        raise ValueError("values within groups must differ")
    test, typical = f_oneway(*found), (total - float((sizes**2).sum()) / total) / (count - 1)
    return OneWay(float(test.statistic), float(test.pvalue), math.sqrt(max(0.0, test.statistic - 1) * inner / typical))


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
    quantile = t_quantile(0.5 + level / 2, count - 1)
    half = quantile * math.sqrt(max(knapp, plain))
    reach = None if count < LEAST else max(
        t_quantile(0.5 + level / 2, count - 2) * math.sqrt(between + max(knapp, plain)),
        quantile * math.sqrt(float(found.var(ddof=1)) * (1 + 1 / count)))
    return RandomEffects(
        count, mean, math.sqrt(knapp), Interval(mean - half, mean + half, level), q, float(chi2.sf(q, count - 1)),
        math.sqrt(between), max(0.0, (q - (count - 1)) / q) if q > 0 else 0.0,
        None if reach is None else Interval(mean - reach, mean + reach, level))
