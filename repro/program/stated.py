"""Numbers as programs print them."""

from __future__ import annotations

import math
import re

from repro.program.observation import OutputProblem
from repro.program.order import quoted

NUMBER = re.compile(r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|nan|inf|infinity)", re.IGNORECASE)
COUNT = re.compile(r"[0-9]{1,18}")
SECONDS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}


def quality(text: str, line: str) -> float:
    """Return a quality; nan and infinities are values.

    Raises:
        OutputProblem: it is no number: a unit, a comma or a percent sign is none.
    """
    if NUMBER.fullmatch(text) is None:
        raise OutputProblem(f"the quality {quoted(text)} is no number: {quoted(line)}")
    return float(text)


def count(text: str, what: str, line: str) -> int:
    """Return a number of steps or samples.

    Raises:
        OutputProblem: it is no whole number of at most 18 digits.
    """
    if COUNT.fullmatch(text) is None:
        raise OutputProblem(f"{what} {quoted(text)} is no whole number: {quoted(line)}")
    return int(text)


def amount(text: str, what: str, line: str) -> float:
    """Return epochs or a time.

    Raises:
        OutputProblem: it is no finite number of at least 0.
    """
    number = float(text) if NUMBER.fullmatch(text) else math.nan
    if not 0 <= number < math.inf:
        raise OutputProblem(f"{what} {quoted(text)} is no number of at least 0: {quoted(line)}")
    return number


def seconds(text: str, line: str) -> float:
    """Return a time with its unit in seconds.

    Raises:
        OutputProblem: as `amount`; no unit, or none of ms, s, min and h.
    """
    digits = text.rstrip("abcdefghijklmnopqrstuvwxyz").rstrip()
    unit = text[len(digits):].strip()
    if unit not in SECONDS:
        raise OutputProblem(f"train time {quoted(text)} has no unit of {', '.join(SECONDS)}: {quoted(line)}")
    return amount(digits, "train time", line) * SECONDS[unit]
