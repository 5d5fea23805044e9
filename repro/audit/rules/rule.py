"""A rule of best practice, and its finding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass
from typing import Literal

from repro.audit.rules.facts import Facts, Origin
from repro.core.frozen import Frozen

Verdict = Literal["pass", "fail", "not applicable", "cannot tell"]
Judged = tuple[Verdict, str]
"""A verdict and one sentence of evidence, with figures."""
SHOWN = 3
NO_TRAINING: Judged = ("not applicable", "operations are measured: nothing is trained")
NO_TARGET: Judged = ("not applicable", "no target was requested: a fixed number of steps is timed")


class Finding(Frozen):
    """The verdict of one rule on one experiment."""

    id: str
    source: str
    title: str
    verdict: Verdict
    required: bool
    evidence: str


@dataclass(frozen=True, slots=True)
class Rule:
    """One practice and the pure function that judges it."""

    id: str
    source: str
    title: str
    judge: Callable[[Facts], Judged]
    required: tuple[Origin, ...] = ()
    """The origins for which the rule is required."""
    of_target: bool = False
    """It judges what only a target gives: a time to it, the quality at it, the curve towards it."""

    of_training: bool = False
    """It judges what only a training has: hyper-parameters, data, one set of weights."""

    def find(self, facts: Facts) -> Finding:
        if facts.measurements and (self.of_training or self.of_target):
            verdict, evidence = NO_TRAINING
        else:
            verdict, evidence = NO_TARGET if self.of_target and facts.no_target else self.judge(facts)
        return Finding(id=self.id, source=self.source, title=self.title, verdict=verdict,
                       required=facts.origin in self.required, evidence=evidence)


ALWAYS: tuple[Origin, ...] = ("record", "mlperf", "dawnbench", "speedrun", "mlflow")


def lacks(facts: Facts, text: str) -> Judged:
    """Judge a missing statement: fail for a run of this harness, whose record is complete.

    Elsewhere "cannot tell": a paper or another file may state it.
    """
    return ("fail", text) if facts.whole else ("cannot tell", text)


def untold(facts: Facts, text: str) -> Judged:
    """Judge a missing statement about the inside of a training: as `lacks`, but no record states it of a program."""
    if facts.programs:
        return "cannot tell", f"{text}; a program of the user's does not state it"
    return lacks(facts, text)


def join(items: Iterable[str]) -> str:
    """Return `a; b; c and 4 more`; semicolons, because labels of cells hold commas."""
    found = list(items)
    rest = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return "; ".join(found[:SHOWN]) + rest


def many(items: Sized, noun: str, plural: str = "") -> str:
    """Return the number of `items` with its noun: `1 cell`, `4 cells`."""
    return count(len(items), noun, plural)


def count(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: `1 cell`, `4 cells`."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
