"""Result of a benchmark of the harness: a ratio over interleaved pairs, with its interval."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from repro import stats
from repro.core.frozen import Frozen


class BenchOutcome(Frozen):
    """Ratio of our time to theirs, pair by pair."""

    what: str
    ours: str
    theirs: str
    unit: str
    ours_values: tuple[float, ...]
    theirs_values: tuple[float, ...]
    ratio: float
    """Geometric mean over pairs."""
    low: float
    high: float
    level: float
    median_ratio: float
    median_low: float | None
    """Interval of the median of the pairs' ratios, by order statistics; None: too few pairs."""
    median_high: float | None
    limit: float
    """Largest ratio promised by the project."""

    def text(self) -> str:
        pairs = len(self.ours_values)
        return "\n".join([
            self.what,
            f"  {self.ours}: median {median(self.ours_values):.4g} {self.unit}",
            f"  {self.theirs}: median {median(self.theirs_values):.4g} {self.unit}",
            f"  ratio {self.ratio:.4f} ({self.level:.0%} interval {self.low:.4f} to {self.high:.4f}, {pairs} "
            f"interleaved pairs), median of pairs {self.median_ratio:.4f}{self._median_interval()}; promised: at most "
            f"{self.limit:g}",
            "  measured on this machine, now",
        ])

    def _median_interval(self) -> str:
        if self.median_low is None:
            return ""
        return f" ({self.median_low:.4f} to {self.median_high:.4f})"


def outcome(
    what: str, ours: tuple[str, Sequence[float]], theirs: tuple[str, Sequence[float]], unit: str, limit: float
) -> BenchOutcome:
    """Pair the two lists and compute their ratio with its interval."""
    ratio, interval = stats.paired_ratio(ours[1], theirs[1])
    ratios = [a / b for a, b in zip(ours[1], theirs[1], strict=True)]
    inner = stats.median_interval(ratios)
    return BenchOutcome(
        what=what, ours=ours[0], theirs=theirs[0], unit=unit, ours_values=tuple(ours[1]),
        theirs_values=tuple(theirs[1]), ratio=ratio, low=interval.low, high=interval.high, level=interval.level,
        median_ratio=median(ratios),
        median_low=inner.low if inner else None, median_high=inner.high if inner else None, limit=limit,
    )
