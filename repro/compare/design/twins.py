"""What comparisons of twins find: a rate of wrong verdicts (exact binomial), a bias between them (paired test).

Twins are one cell run twice with the same seeds, so any difference between them that is more than chance is of the
harness or the machine. What acts on both alike, such as a clock that is slow for everybody, no comparison of twins can
find.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from repro import stats
from repro.compare import Pair

PROMISED = 0.05
"""Largest rate of wrong verdicts that the method promises."""
RATE_LEVEL, BIAS_LEVEL = 0.01, 0.04
"""Levels of the two tests: a harness without a fault fails in at most 5 % of calibrations. The test of the bias has the
larger part, because it finds more, and because six pairs are significant at 4 % at best."""
POWER = 0.8
ASSUMED = 0.01
"""Standard deviation of the log ratio of a pair that the power is stated for before anything has run."""


class Bias(NamedTuple):
    """The second twins against the first: geometric mean of the ratios, deviation of their logarithms."""

    ratio: float
    interval: stats.Interval
    p: float
    spread: float


def bias(pairs: Sequence[Pair]) -> Bias | None:
    """Return the bias between twins; None: fewer than two pairs, or no spread. Its p is the larger of two tests."""
    second, first = [item.candidate for item in pairs], [item.baseline for item in pairs]
    p = stats.or_none(lambda: stats.paired_p(second, first))
    if p is None:
        return None
    ratio, interval = stats.paired_ratio(second, first, 1 - BIAS_LEVEL)
    logs = stats.log_ratios(second, first)
    if len(pairs) <= stats.EXACT_PAIRS:
        p = max(p, stats.sign_flip(logs.tolist()))
    return Bias(ratio, interval, p, stats.deviation(logs))


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
    """Say what so many comparisons, with `pairs` in all whose log ratios have this deviation, find with 80 %."""
    rate = detectable_rate(nulls)
    ratio = stats.detectable_ratio(spread, pairs, BIAS_LEVEL, POWER)
    rates = "no rate of wrong verdicts" if rate is None else f"a rate of wrong verdicts from {100 * rate:.0f} %"
    biases = "no bias between twins" if ratio is None else f"a bias between twins from {100 * (ratio - 1):.3g} %"
    return f"{rates}, {biases}"
