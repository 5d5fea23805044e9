"""Figures with their unit as plain text: times below 0.1 s in milliseconds, as on the page."""

from __future__ import annotations

from repro.compare import METRICS
from repro.core.numbers import readable


def seconds_text(value: float, digits: int = 4) -> str:
    """Return a time as `0.7664 s` or `1.527 ms`."""
    number, unit = readable(value)
    return f"{number:.{digits}g} {unit}"


def amount_text(value: float, metric: str, digits: int = 4) -> str:
    """Return a value of a metric with the unit of the metric."""
    scale = METRICS[metric]
    return seconds_text(value, digits) if scale.timed else f"{value:.{digits}g} {scale.unit}".rstrip()


def ends_text(low: float, high: float, metric: str) -> str:
    """Return the ends of an interval; times have their unit, once if both have the same."""
    if not METRICS[metric].timed:
        return f"{low:.4g} to {high:.4g}"
    first, last = seconds_text(low), seconds_text(high)
    unit = last[last.index(" "):]
    return f"{first.removesuffix(unit)} to {last}"


def share_text(value: float | None, decimals: int = 0) -> str:
    """Return a share in per cent; a dash if it is unknown."""
    return "-" if value is None else f"{100 * value:.{decimals}f} %"
