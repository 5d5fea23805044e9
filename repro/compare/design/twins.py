"""What comparisons of twins find: a rate of wrong verdicts (exact binomial), a bias between them (paired test).

Twins are one cell run twice with the same seeds, so any difference between them that is more than chance is of the
harness or the machine. What acts on both alike, such as a clock that is slow for everybody, no comparison of twins can
find.
"""

from __future__ import annotations

from collections.abc import Sequence

from repro import stats
from repro.compare import Pair
from repro.compare.figures import Bounds
from repro.core.frozen import Frozen

PROMISED = 0.05
"""Largest rate of wrong verdicts that the method promises."""
RATE_LEVEL, BIAS_LEVEL = 0.01, 0.04
"""Levels of the two tests: a harness without a fault fails in at most 5 % of calibrations. The test of the bias has the
larger part, because it finds more, and because six pairs are significant at 4 % at best."""
POWER = 0.8
ASSUMED = 0.01
"""Standard deviation of the log ratio of a pair that the power is stated for before anything has run."""


class Bias(Frozen):
    """The second twins against the first, over all pairs."""

    ratio: float
    """Geometric mean of second / first."""
    interval: Bounds
    p: float
    """Of the t test, and up to 20 pairs the larger of it and of the exact sign-flip test."""
    spread: float
    """Standard deviation of the log ratios."""


def bias(pairs: Sequence[Pair]) -> Bias | None:
    """Return the bias between twins; None: fewer than two pairs, or no spread."""
    second, first = [item.candidate for item in pairs], [item.baseline for item in pairs]
    p = stats.or_none(lambda: stats.paired_p(second, first))
    if p is None:
        return None
    ratio, interval = stats.paired_ratio(second, first, 1 - BIAS_LEVEL)
    logs = stats.log_ratios(second, first)
    if len(pairs) <= stats.EXACT_PAIRS:
        p = max(p, stats.sign_flip(logs.tolist()))
    return Bias(ratio=ratio, interval=Bounds(low=interval.low, high=interval.high, level=interval.level), p=p,
                spread=stats.deviation(logs))


def fewest_wrong(nulls: int) -> int | None:
    """Return how many wrong verdicts a rate of 5 % gives with a probability of at most 1 %; None: no number."""
    from scipy.special import bdtrc

    return next((count for count in range(1, nulls + 1) if bdtrc(count - 1, nulls, PROMISED) <= RATE_LEVEL), None)


def detectable_rate(nulls: int) -> float | None:
    """Return the true rate of wrong verdicts that so many comparisons find with 80 % probability; None: none."""
    from scipy.special import betaincinv

    fewest = fewest_wrong(nulls)
    return None if fewest is None else float(betaincinv(fewest, nulls - fewest + 1, POWER))


def smallest_found(nulls: int, pairs: int, spread: float) -> str:
    """Say what is found with 80 % probability.

    Args:
        nulls: comparisons.
        pairs: of all of them.
        spread: standard deviation of the log ratio of a pair.
    """
    rate = detectable_rate(nulls)
    ratio = stats.detectable_ratio(spread, pairs, BIAS_LEVEL, POWER)
    rates = "no rate of wrong verdicts" if rate is None else f"a rate of wrong verdicts from {100 * rate:.0f} %"
    biases = "no bias between twins" if ratio is None else f"a bias between twins from {100 * (ratio - 1):.3g} %"
    return f"{rates}, {biases}"
