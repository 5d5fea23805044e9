"""Group-sequential tests: the error that each look may spend (Lan & DeMets 1983), and its nominal level.

A level is computed for normal statistics with independent increments by recursive numerical integration (Armitage,
McPherson & Rowe 1969) and applied to the p of Student's t test of the pairs so far (Pocock 1977; Jennison & Turnbull
2000, section 3.8). docs/method.md has the error rates with t, simulated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from statistics import NormalDist
from typing import Literal

import numpy as np

from repro.stats.interval import t_quantile
from repro.stats.sample import finite, mean, spread

Spending = Literal["power", "obrien-fleming", "pocock"]
ALPHA = 0.05
MOST_LOOKS = 50
_FAR = 9.0
"""Standard deviations beyond which a normal statistic has no mass that counts (1e-19)."""


@dataclass(frozen=True, slots=True)
class LookLevel:
    """One look of a design, and the nominal levels that keep the error of all looks together at alpha."""

    n: int
    """Pairs at this look."""
    difference: float
    """Two-sided p at or below which a difference is shown."""
    same: float
    """One-sided p at or below which each side of sameness is shown."""


def spent(
    share: float, alpha: float = ALPHA, spending: Spending = "power", power: float = 2.0, sides: int = 2
) -> float:
    """Return the error that may be spent up to a share of the last look's pairs.

    Args:
        share: above 0 and at most 1.
        power: exponent of `power`: alpha * share^power.
        sides: 2 for a symmetric two-sided test, each side of which spends half; only obrien-fleming differs.

    Raises:
        ValueError: a share, alpha or power out of range, or an unknown spending function.
    """
    if not 0 < share <= 1 or not 0 < alpha < 1:
        raise ValueError(f"a share must be above 0 and at most 1 and alpha between 0 and 1, not {share} and {alpha}")
    if spending == "power":
        if not 0 < power <= 20:
            raise ValueError(f"the power of a spending function must be above 0 and at most 20, not {power}")
        return float(alpha * share**power)
    if spending == "pocock":
        return alpha * math.log(1 + (math.e - 1) * share)
    if spending == "obrien-fleming":
        return float(2 * sides * _tail(-NormalDist().inv_cdf(alpha / (2 * sides)) / math.sqrt(share)))
    raise ValueError(f"unknown spending function {spending!r}; power, obrien-fleming or pocock")


@lru_cache(maxsize=256)
def look_levels(
    looks: tuple[int, ...], spending: Spending = "power", power: float = 2.0, alpha: float = ALPHA
) -> tuple[LookLevel, ...]:
    """Return the nominal levels of every look.

    Args:
        looks: pairs at each look, rising; the last is the largest number of pairs.

    Raises:
        ValueError: no look, more than 50, or not rising; as `spent`.
    """
    if not 1 <= len(looks) <= MOST_LOOKS:
        raise ValueError(f"a design has 1 to {MOST_LOOKS} looks, not {len(looks)}")
    if looks[0] < 2 or any(later <= earlier for earlier, later in pairwise(looks)):
        raise ValueError(f"looks must rise, from at least 2 pairs, not {list(looks)}")
    two, one = ([spent(n / looks[-1], alpha, spending, power, sides) for n in looks] for sides in (2, 1))
    both = spending_bounds(looks, two, two_sided=True)
    single = spending_bounds(looks, one, two_sided=False)
    return tuple(LookLevel(n, 2 * _tail(upper), _tail(side))
                 for n, upper, side in zip(looks, both, single, strict=True))


def spending_bounds(information: Sequence[float], cumulative: Sequence[float], two_sided: bool) -> list[float]:
    """Return the bounds of the standardized statistic at which the tests so far have spent `cumulative`.

    Args:
        information: number of pairs at each look, rising.
        cumulative: error spent up to each look, not falling.
    """
    found: list[float] = []
    process = _Process(two_sided)
    before = 0.0
    for amount, total in zip(information, cumulative, strict=True):
        process.advance(amount)
        step, before = total - before, total
        # Below 1e-16 the integral is rounding; the bound is then beyond what any test can reach.
        bound = _FAR if step < 1e-16 else process.bound_of(step)
        found.append(bound)
        process.stay(bound)
    return found


def stagewise_p(
    information: Sequence[float], bounds: Sequence[float], statistic: float, effect: float = 0.0
) -> float:
    """Return the probability of a result at least as high as the one seen, in the stagewise order: above all others are
    exits at earlier looks beyond the upper bound, below all others those beyond the lower one (Fairbanks & Madsen
    1982). It rises with the effect.

    Args:
        information: number of pairs at each look, up to the one that ended the run.
        bounds: of the standardized statistic, at the looks before that.
        statistic: standardized, at the last of them.
        effect: true mean of one pair in its standard deviations.
    """
    process, found = _Process(two_sided=True, effect=effect), 0.0
    for amount, bound in zip(information, bounds, strict=False):
        process.advance(amount)
        found += process.above(bound)
        process.stay(bound)
    process.advance(information[-1])
    return found + process.above(statistic)


@dataclass(frozen=True, slots=True)
class StoppedMean:
    """The mean of the pairs of a run that stopped at a look, corrected for the stop."""

    value: float
    """Median-unbiased: over all stops of the design, half of such estimates are above the true mean."""
    low: float
    high: float
    freedom: int
    level: float

    @property
    def error(self) -> float:
        """Standard error of a mean that would have an interval of this width."""
        return (self.high - self.low) / 2 / t_quantile(0.5 + self.level / 2, self.freedom)


def median_unbiased(
    logs: Sequence[float], looks: Sequence[int], nominal: Sequence[float], level: float = 0.95
) -> StoppedMean:
    """Return the median-unbiased mean with its interval, by the stagewise order.

    The true means at which a result at least as high has probability 1/2, and those of the two ends (Emerson & Fleming
    1990). At the first look it is the plain mean with its t interval. The order is that of normal statistics whose
    spread is known; the sample's takes its place, and Student's quantiles those of bounds and ends. A stop for sameness
    counts as the end of the run at its look.

    Args:
        logs: log ratios of the pairs up to the look that ended the run.
        looks: pairs at each look up to that one.
        nominal: two-sided level of a difference at each of them.

    Raises:
        ValueError: the looks do not end at the number of logs, or the logs do not spread.
    """
    from scipy.optimize import brentq

    values = finite(logs, "logs of ratios")
    if len(values) != looks[-1] or len(nominal) != len(looks):
        raise ValueError(f"needs the {looks[-1]} pairs of the last look and a level for each look, not {len(values)} "
                         f"pairs and {len(nominal)} levels")
    scale, freedom = spread(values, "an estimate after a stop"), len(values) - 1
    statistic = mean(values) / scale * math.sqrt(len(values))
    bounds = [t_quantile(1 - share / 2, n - 1) for share, n in zip(nominal[:-1], looks, strict=False)]
    reach = max([abs(statistic) / math.sqrt(looks[-1]), *(bound / math.sqrt(looks[0]) for bound in bounds)])
    far = reach + 2 * _FAR / math.sqrt(looks[0])

    def effect(probability: float) -> float:
        return scale * float(brentq(
            lambda at: stagewise_p(looks, bounds, statistic, at) - probability, -far, far, xtol=1e-8))

    tail = _tail(t_quantile(0.5 + level / 2, freedom))
    return StoppedMean(effect(0.5), effect(tail), effect(1 - tail), freedom, level)


class _Process:
    """The density of a sum of normal pairs on the paths that stayed between all bounds so far."""

    def __init__(self, two_sided: bool, effect: float = 0.0) -> None:
        self._two_sided, self._effect = two_sided, effect
        self._sums, self._mass = np.zeros(1), np.ones(1)  # nodes, and density times weight
        self._now = self._step = 0.0

    def advance(self, amount: float) -> None:
        """Go to the look at which `amount` pairs are known."""
        self._step, self._now = amount - self._now, amount

    def exit(self, bound: float) -> float:
        """Return the probability to be beyond a standardized bound at this look for the first time."""
        if not self._two_sided:
            return self.above(bound)
        return float(self._mass @ (self._beyond(bound, 1) + self._beyond(bound, -1))) if bound >= 0 else \
            float(self._mass.sum())

    def above(self, bound: float) -> float:
        """Return the probability to be above a standardized bound at this look."""
        return float(self._mass @ self._beyond(bound, 1))

    def _beyond(self, bound: float, side: int) -> np.ndarray:
        centre = self._sums + self._effect * self._step
        return np.asarray(_tails((bound * math.sqrt(self._now) - side * centre) / math.sqrt(self._step)))

    def bound_of(self, error: float) -> float:
        """Return the bound beyond which the probability at this look is `error`: it falls as the bound rises."""
        low, high = -_FAR, _FAR
        while high - low > 1e-12:
            middle = (low + high) / 2
            low, high = (middle, high) if self.exit(middle) > error else (low, middle)
        return (low + high) / 2

    def stay(self, bound: float) -> None:
        """Keep the paths that are within the bound at this look."""
        scale, middle = math.sqrt(self._now), self._effect * self._now
        high = min(bound * scale, middle + _FAR * scale)
        low = -high if self._two_sided and self._effect == 0 else max(
            -bound * scale if self._two_sided else -math.inf, middle - _FAR * scale)
        if high <= low:
            self._sums, self._mass = np.zeros(1), np.zeros(1)
            return
        root = math.sqrt(self._step)
        nodes, weights = _quadrature(low, high, root)
        distance = (nodes[:, None] - self._sums[None, :] - self._effect * self._step) / root
        density = np.exp(-0.5 * distance**2) @ self._mass / (root * math.sqrt(2 * math.pi))
        self._sums, self._mass = nodes, density * weights


def _tail(z: float) -> float:
    """Return the probability of a normal statistic above z. Not scipy's, which takes half a second to import: a suite
    that is only shown computes its levels too."""
    return 0.5 * math.erfc(z / math.sqrt(2))


_tails = np.vectorize(_tail, otypes=[float])


@lru_cache(maxsize=1)
def _legendre() -> tuple[np.ndarray, np.ndarray]:
    return np.polynomial.legendre.leggauss(12)


def _quadrature(low: float, high: float, width: float) -> tuple[np.ndarray, np.ndarray]:
    """Return Gauss-Legendre nodes and weights, 12 for each panel that is no wider than the kernel."""
    points, weights = _legendre()
    panels = max(4, math.ceil((high - low) / width))
    edges = np.linspace(low, high, panels + 1)
    half = (edges[1:] - edges[:-1]) / 2
    nodes = (edges[:-1] + half)[:, None] + half[:, None] * points
    return nodes.ravel(), (half[:, None] * weights).ravel()
