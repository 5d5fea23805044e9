"""Figures with their unit as a terminal shows them: times below 0.1 s in milliseconds, as on the page."""

from __future__ import annotations

from repro.compare import METRICS

LEAST_SECONDS = 0.1
"""Shorter times are shown in milliseconds."""
ROUNDING_SECONDS = 5e-10
"""Shorter times are the rounding of a subtraction, and shown as 0."""


def seconds_text(value: float) -> str:
    """Return a time as `0.7664 s` or `1.527 ms`."""
    if abs(value) >= LEAST_SECONDS:
        return f"{value:.4g} s"
    return "0 s" if abs(value) < ROUNDING_SECONDS else f"{1e3 * value:.4g} ms"


def amount_text(value: float, metric: str) -> str:
    """Return a value of a metric with the unit of the metric."""
    scale = METRICS[metric]
    return seconds_text(value) if scale.timed else f"{value:.4g} {scale.unit}".rstrip()


def ends_text(low: float, high: float, metric: str) -> str:
    """Return the ends of an interval; times have their unit, once if both have the same."""
    if not METRICS[metric].timed:
        return f"{low:.4g} to {high:.4g}"
    first, last = seconds_text(low), seconds_text(high)
    unit = last[last.index(" "):]
    return f"{first.removesuffix(unit)} to {last}"
