"""The two factors of a ratio of times: samples to the target, and samples per second on the way there."""

from __future__ import annotations

import math
from collections.abc import Sequence

from repro import stats
from repro.compare.evidence.pairing import CellTrials
from repro.compare.figures import Estimate, Pair, TimeSplit, bounds
from repro.suite.metrics import MetricSpec


def split_of(ours: CellTrials, theirs: CellTrials, pairs: Sequence[Pair], scale: MetricSpec) -> TimeSplit | None:
    """Return the two factors of a ratio of times over complete pairs; None for other metrics, or if samples are
    unknown.

    A run's time is its samples over its samples a second, so in geometric means the identity is exact.
    """
    if not (scale.timed and scale.to_target):
        return None
    above = [_samples(ours, pair.repeat) for pair in pairs]
    below = [_samples(theirs, pair.repeat) for pair in pairs]
    if any(count is None or count <= 0 for count in (*above, *below)):
        return None
    samples = _estimate([float(count or 0) for count in above], [float(count or 0) for count in below])
    throughput = _estimate([(count or 0) / pair.candidate for count, pair in zip(above, pairs, strict=True)],
                           [(count or 0) / pair.baseline for count, pair in zip(below, pairs, strict=True)])
    times = stats.mean(stats.log_ratios([pair.candidate for pair in pairs], [pair.baseline for pair in pairs]))
    assert math.isclose(samples.value / throughput.value, math.exp(times), rel_tol=1e-9), "factors must multiply"
    return TimeSplit(samples=samples, throughput=throughput)


def in_words(split: TimeSplit) -> str:
    """Return what the two factors show, each by its own interval without correction: exploratory, never a verdict."""
    return f"{_side(split.samples, 'samples to the target')}; {_side(split.throughput, 'samples a second')}"


def _side(found: Estimate, what: str) -> str:
    if found.interval is None:
        return f"{what} {found.value:.3g} x {'in every pair' if found.steady else '(no interval at a look)'}"
    if found.interval.low > 1:
        return f"more {what}"
    return f"fewer {what}" if found.interval.high < 1 else f"{what}: no difference shown"


def _samples(found: CellTrials, repeat: int) -> float | None:
    return found.results[repeat].samples_to_target


def _estimate(candidate: Sequence[float], baseline: Sequence[float]) -> Estimate:
    ratio, interval = stats.paired_ratio(candidate, baseline)
    steady = math.isclose(interval.low, interval.high, rel_tol=1e-12)
    return Estimate(value=ratio, interval=None if steady else bounds(interval), steady=steady)
