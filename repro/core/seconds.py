"""The unit in which people read a time."""

from __future__ import annotations

LEAST = 0.1
"""Shorter times, in seconds, are read in milliseconds."""
ROUNDING = 5e-10
"""Shorter times are the rounding of a subtraction."""


def readable(seconds: float) -> tuple[float, str]:
    """Return (number, unit): `(0.7664, "s")` or, below 0.1 s, `(1.527, "ms")`; `(0.0, "s")` for a rounding error."""
    if abs(seconds) >= LEAST:
        return seconds, "s"
    return (0.0, "s") if abs(seconds) < ROUNDING else (1e3 * seconds, "ms")
