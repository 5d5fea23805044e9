"""Conditions on a comparison for scripts: `ratio > 1.05`. A name, a sign and a number; no code is evaluated."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

from repro.compare.figures import Comparison
from repro.core.errors import UsageError, nearest

SIGNS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne,
}
FIGURES: dict[str, Callable[[Comparison], float | None]] = {
    "ratio": lambda item: item.ratio,
    "low": lambda item: item.interval.low if item.interval else None,
    "high": lambda item: item.interval.high if item.interval else None,
    "p": lambda item: item.p if item.p_adjusted is None else item.p_adjusted,
    "speedup": lambda item: item.speedup,
    "n": lambda item: float(item.n),
    "probability_less": lambda item: item.probability_less.value if item.probability_less else None,
}
WRITTEN = re.compile(r"\s*([a-z_]+)\s*(>=|<=|==|!=|>|<)\s*(\S+)\s*")


@dataclass(frozen=True, slots=True)
class Condition:
    """A parsed condition."""

    text: str
    name: str
    sign: str
    number: float

    def failure(self, found: Comparison) -> str:
        """Return why the comparison fails the condition; "" if it does not.

        A missing figure fails, and so does every condition on a refused comparison: a check that could not be made must
        not pass.
        """
        value = FIGURES[self.name](found)
        versus = f"{found.candidate_label} against {found.baseline_label}"
        if found.refused:
            return f"{versus}: no result, so {self.text!r} cannot be ruled out; {found.because}"
        if value is None or math.isnan(value):
            return f"{versus}: no {self.name}, so {self.text!r} cannot be ruled out; {found.because}"
        return f"{versus}: {self.name} = {value:.4g}, {self.text}" if SIGNS[self.sign](value, self.number) else ""


def parse(text: str) -> Condition:
    """Read a condition.

    Raises:
        UsageError: not of the form NAME SIGN NUMBER.
    """
    found = WRITTEN.fullmatch(text)
    if found is None:
        raise UsageError(f"--fail-if {text!r}: a condition is a name, a sign and a number, like 'ratio > 1.05'")
    name, sign, written = found.groups()
    if name not in FIGURES:
        raise UsageError(f"--fail-if {text!r}: no figure named {name!r}{nearest(name, FIGURES)}")
    try:
        number = float(written)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(f"--fail-if {text!r}: {written!r} is not a number")
    return Condition(f"{name} {sign} {written}", name, sign, number)
