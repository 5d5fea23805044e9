"""The verdicts as sentences, the declared one first, with the false-positive rate of the harness."""

from __future__ import annotations

from dataclasses import dataclass

from repro.compare.design.calibration import Calibration
from repro.compare.findings import Findings
from repro.tables.text import Number, number

from .speedup import Forest, Ratio

OPEN_UP_TO = 3
"""Other contrasts above which the list is folded."""


@dataclass(frozen=True, slots=True)
class ErrorRate:
    """The share of wrong verdicts between identical cells."""

    sentence: str
    share: Number
    ends: tuple[Number, Number]
    wrong: int
    n: int
    machine: str


@dataclass(frozen=True, slots=True)
class Verdicts:
    """The first screen."""

    primary: Ratio | None
    others: tuple[Ratio, ...]
    folded: bool
    decided: int
    """Number of the others with a verdict."""
    errors: str
    """Spending of the 5 % for wrong verdicts; "" without a verdict."""
    rate: ErrorRate | None
    """None: not calibrated."""


def verdicts(findings: Findings, forest: Forest) -> Verdicts:
    """Return all comparisons of the plan, in the order of `repro compare`."""
    found = findings.calibration
    return Verdicts(
        primary=forest.primary, others=forest.others, folded=len(forest.others) > OPEN_UP_TO,
        decided=sum(item.verdict not in ("inconclusive", "exploratory") for item in forest.others),
        errors=forest.errors, rate=_rate(found) if found else None,
    )


def _rate(found: Calibration) -> ErrorRate:
    share, low, high = (number(100 * value, 2, "%") for value in
                        (found.false_positives / found.n, found.rate.low, found.rate.high))
    assert share and low and high
    return ErrorRate(found.sentence(), share, (low, high), found.false_positives, found.n, found.machine)
