"""Numbers: sums with the same bits everywhere, and figures as people read them."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from functools import reduce
from statistics import median

DIGITS = ("Zero", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine")


def spelled(number: int) -> str:
    """Return the digits of a number that is not negative as words: 12 is `OneTwo`."""
    return "".join(DIGITS[int(digit)] for digit in str(number))


MOST_DECIMALS = 6


def percent_above(share: float, limit: float, decimals: int = 1) -> str:
    """Return a share above a limit as `0.52 %`, with as many decimals as it needs to be seen above the limit."""
    while decimals < MOST_DECIMALS and round(100 * share, decimals) <= round(100 * limit, MOST_DECIMALS):
        decimals += 1
    return f"{100 * share:.{decimals}f} %"


LEAST = 0.1
"""Shorter times, in seconds, are read in milliseconds."""
ROUNDING = 5e-10
"""Shorter times are the rounding of a subtraction."""


def readable(seconds: float) -> tuple[float, str]:
    """Return (number, unit): `(0.7664, "s")` or, below 0.1 s, `(1.527, "ms")`; `(0.0, "s")` for a rounding error."""
    if abs(seconds) >= LEAST:
        return seconds, "s"
    return (0.0, "s") if abs(seconds) < ROUNDING else (1e3 * seconds, "ms")


def known_median(values: Iterable[float | None]) -> float | None:
    """Return the median of the values that are known; None without any."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


def plain_sum(values: Iterable[float]) -> float:
    """Add from left to right and round after each addition, as `sum` did before Python 3.12.

    Since then `sum` compensates the rounding of floats, so its last digits differ. A result that is derived from a log
    must have the same bits under every version, or verification would call an unmodified record modified.
    """
    return reduce(operator.add, values, 0.0)


def spans(numbers: Sequence[int], to: str = " to ", between: str = ", ") -> str:
    """Format 1, 2, 3, 5 as `1 to 3, 5`."""
    runs: list[list[int]] = []
    for value in sorted(numbers):
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    return between.join(f"{run[0]}{to}{run[-1]}" if len(run) > 2 else between.join(map(str, run)) for run in runs)


def significant(value: float, digits: int = 3) -> str:
    """Format `value` with `digits` significant digits, without an exponent from 0.0001 up to 10^16."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    magnitude = math.floor(math.log10(abs(value)))
    if magnitude < -4 or magnitude > 15:
        return f"{value:.{digits - 1}e}"
    return f"{value:,.{max(0, digits - 1 - magnitude)}f}"


def ratio_texts(values: Sequence[float], decimals: int = 3) -> list[str]:
    """Format ratios alike: with `decimals` decimals, or, if one is below 0.1, with at least three significant digits.

    If one that is not 1 would read as 1, all get more digits, at most six.
    """
    small = min((abs(value) for value in values if value), default=1.0) < 0.1

    def text(value: float, digits: int) -> str:
        return significant(value, digits) if small else f"{value:,.{digits}f}"

    digits = max(decimals, 3) if small else decimals
    while digits < 6 and any(value != 1 and text(value, digits).rstrip("0") == "1." for value in values):
        digits += 1
    return [text(value, digits) for value in values]
