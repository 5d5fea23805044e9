"""Conditions on a comparison for scripts: `slower`, `ratio.low > 1.05`. No code is evaluated."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

from repro.compare.figures import Comparison
from repro.compare.verdict.family import can_be_same
from repro.core.errors import UsageError, nearest
from repro.suite.metrics import METRICS

SIGNS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne,
}


def _low(item: Comparison) -> float | None:
    return item.corrected.low if item.corrected else None


def _high(item: Comparison) -> float | None:
    return item.corrected.high if item.corrected else None


def _speedup(item: Comparison, low: bool) -> float | None:
    """Return an end of the interval of the speed; of times it is the other end of the ratio's."""
    spec = METRICS[item.metric]
    end = _high(item) if low == (spec.better == "lower") else _low(item)
    return None if end is None else spec.speedup(end)


FIGURES: dict[str, Callable[[Comparison], float | None]] = {
    "ratio.low": _low, "ratio.high": _high, "low": _low, "high": _high,
    "speedup.low": lambda item: _speedup(item, True), "speedup.high": lambda item: _speedup(item, False),
    "n": lambda item: float(item.n),
    "failures": lambda item: float(item.failures.candidate) if item.failures else 0.0,
}
POINTS = ("ratio", "speedup", "probability_less", "p")
"""Estimates without their error: in 57 of 100 comparisons of equal cells (3 contrasts, 6 pairs, CV 10 %) one of the
ratios exceeds 1.05. p alone is no verdict: it does not know unlike evaluation grids."""
WORDS = ("faster", "slower", "higher", "lower", "same", "different")
DIFFERENT = ("faster", "slower", "higher", "lower")
WRITTEN = re.compile(r"\s*([a-z_.]+)\s*(>=|<=|==|!=|>|<)\s*(\S+)\s*")
FORM = "a condition is a verdict, like 'slower' or 'not-same', or an end of an interval, like 'ratio.low > 1.05'"


@dataclass(slots=True)
class FigureCondition:
    """A figure, a sign and a number."""

    text: str
    name: str
    sign: str
    number: float

    def failure(self, found: Comparison) -> str:
        """Return why the comparison fails the condition; "" if it does not.

        A missing figure fails, and so does every condition on a refused comparison or on one whose run goes on: a check
        that could not be made must not pass.
        """
        value, versus = FIGURES[self.name](found), _versus(found)
        if found.refused or found.goes_on:
            return _unknown(self.text, found)
        if value is None or math.isnan(value):
            return f"{versus}: no {self.name}, so {self.text!r} cannot be ruled out; {found.because}"
        return f"{versus}: {self.name} = {value:.4g}, {self.text}" if SIGNS[self.sign](value, self.number) else ""


@dataclass(slots=True)
class VerdictCondition:
    """A verdict that fails a comparison, or with `wanted` the only one that does not."""

    text: str
    word: str
    wanted: bool

    def failure(self, found: Comparison) -> str:
        """Return the same as for a figure.

        Raises:
            UsageError: the condition cannot hold for this comparison, whatever its figures: a gate that cannot fail.
        """
        spec, versus = METRICS[found.metric], _versus(found)
        words = (spec.above, spec.below)
        if self.word in DIFFERENT and self.word not in words:
            raise UsageError(f"--fail-if {self.text!r}: no verdict on {found.metric}; those are {' and '.join(words)}")
        if found.refused or found.goes_on:
            return _unknown(self.text, found)
        possible = can_be_same(found.units, found.family) if self.word == "same" else found.reachable
        if not possible and not self.wanted:
            units = "pairs" if found.paired else "trials"
            raise UsageError(f"--fail-if {self.text!r}: can never hold for {versus}: {found.n} {units} and "
                             f"{found.family} contrasts cannot show it; give the suite more seeds")
        holds = found.verdict in (DIFFERENT if self.word == "different" else (self.word,))
        # `not-faster` asks for a whole verdict, not for one that holds only where the candidate succeeds.
        partly = any(item and item.of(found.verdict) for item in (found.failures, found.failed_starts))
        if holds is self.wanted and not (holds and partly):
            return ""
        return f"{versus}: {found.spoken} (--fail-if {self.text}); {found.because}"


Condition = FigureCondition | VerdictCondition


def _unknown(text: str, found: Comparison) -> str:
    return f"{_versus(found)}: no result, so {text!r} cannot be ruled out; {found.because}"


def _versus(found: Comparison) -> str:
    return f"{found.candidate_label} against {found.baseline_label}"


def parse(text: str) -> Condition:
    """Read a condition.

    Raises:
        UsageError: neither a verdict nor of the form NAME SIGN NUMBER, or a point estimate.
    """
    word = text.strip()
    if re.fullmatch(r"[a-z-]+", word):
        plain = word.removeprefix("not-")
        if plain in WORDS:
            return VerdictCondition(word, plain, word != plain)
        if plain not in FIGURES and plain not in POINTS:
            raise UsageError(f"--fail-if {text!r}: no verdict named {plain!r}{nearest(plain, WORDS)}")
    found = WRITTEN.fullmatch(text)
    if found is None:
        raise UsageError(f"--fail-if {text!r}: {FORM}")
    name, sign, written = found.groups()
    if name in POINTS:
        raise UsageError(_no_point(text, name, sign, written))
    if name not in FIGURES:
        raise UsageError(f"--fail-if {text!r}: no figure named {name!r}{nearest(name, FIGURES)}")
    try:
        number = float(written)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(f"--fail-if {text!r}: {written!r} is not a number")
    return FigureCondition(f"{name} {sign} {written}", name, sign, number)


def _no_point(text: str, name: str, sign: str, written: str) -> str:
    """Return why a point estimate is no gate, and the conditions on an interval to choose from."""
    if name == "p":
        return (f"--fail-if {text!r}: p alone is not a verdict, which needs the interval and the evaluation grids; "
                "use 'different'")
    why = f"--fail-if {text!r}: a {name.replace('_', ' ')} without its interval crosses a limit by chance"
    if name == "probability_less":
        return f"{why}; test the verdict ('slower') or 'ratio.low'"
    sure, unsure = ("low", "high") if sign.startswith(">") else ("high", "low")
    side = "above" if sign.startswith(">") else "below"
    return (f"{why}; '{name}.{sure} {sign} {written}' fails what is surely {side}, '{name}.{unsure} {sign} {written}' "
            f"what may be {side}")
