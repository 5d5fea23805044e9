"""LinkMeasurement rates and delays as text, in tc's notation: `100mbit`, `2.5gbit`, `500us`."""

from __future__ import annotations

import re

BITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
LEAST, MOST = 1e5, 3e10
"""Bits per second. Below, one frame takes most of a second; above, bytes per second exceed tbf's 32 bits."""


def bits_per_second(text: str) -> float:
    """Parse a rate.

    Raises:
        ValueError: `text` is not a rate, or outside what a link can be shaped to.
    """
    value = _number(text, BITS, f"{text!r} is not a rate; write a number and kbit, mbit or gbit, for example 100mbit")
    if not LEAST <= value <= MOST:
        raise ValueError(f"rate {text} is outside the supported range, 100kbit to 30gbit")
    return value


def seconds(text: str) -> float:
    """Parse a delay.

    Raises:
        ValueError: `text` is not a delay, or outside the supported range.
    """
    value = _number(text, SECONDS, f"{text!r} is not a delay; write a number and us, ms or s, for example 500us")
    if not 0 < value <= 10:
        raise ValueError(f"delay {text} is outside the supported range, 1us to 10s")
    return value


def _number(text: str, units: dict[str, float], wrong: str) -> float:
    found = re.fullmatch(rf"(\d+(?:\.\d+)?) ?({'|'.join(units)})", text.strip().lower())
    if found is None:
        raise ValueError(wrong)
    return float(found.group(1)) * units[found.group(2)]
