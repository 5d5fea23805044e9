"""A rule of good practice, and what it finds."""

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


class Finding(Frozen):
    """What one rule says of one experiment."""

    id: str
    source: str
    title: str
    verdict: Verdict
    required: bool
    evidence: str


@dataclass(frozen=True, slots=True)
class Rule:
    """One practice and how it is judged; `judge` is pure."""

    id: str
    source: str
    title: str
    judge: Callable[[Facts], Judged]
    required: tuple[Origin, ...] = ()
    """Of which origins it is required."""

    def find(self, facts: Facts) -> Finding:
        verdict, evidence = self.judge(facts)
        return Finding(id=self.id, source=self.source, title=self.title, verdict=verdict,
                       required=facts.origin in self.required, evidence=evidence)


ALWAYS: tuple[Origin, ...] = ("record", "mlperf", "dawnbench", "mlflow")


def absent(facts: Facts, text: str) -> Judged:
    """Something is not said. A record of this harness is all there is, so it is not reported: fail. Elsewhere a paper
    or another file may say it."""
    return ("fail", text) if facts.whole else ("cannot tell", text)


def named(items: Iterable[str]) -> str:
    """`a; b; c and 4 more`: labels of cells hold commas."""
    found = list(items)
    rest = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return "; ".join(found[:SHOWN]) + rest


def many(items: Sized, noun: str, plural: str = "") -> str:
    """As many as there are `items`: `1 cell`, `4 cells`."""
    return count(len(items), noun, plural)


def count(number: int, noun: str, plural: str = "") -> str:
    """`1 cell`, `4 cells`."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
