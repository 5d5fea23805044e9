"""The looks of a sequential run: when the primary contrast was judged, with which figures, and what followed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal

from pydantic import ConfigDict, Field

from repro.core.frozen import Frozen

Decision = Literal["settled", "continues", "last", "failed"]
"""settled: the contrast is decided; last: no look is left; failed: a trial of the two cells tells nothing about it, so
no number of further pairs decides."""
ENDS: Final = ("settled", "last")
"""Decisions after which no further trial of the plan runs."""


class Look(Frozen):
    """One look: a line of looks.jsonl."""

    model_config = ConfigDict(allow_inf_nan=False)

    number: int = Field(ge=1, le=1000)
    of: int = Field(ge=1, le=1000)
    """Looks that the suite declares."""
    n: int = Field(ge=1, le=1000)
    """Pairs."""
    decision: Decision
    verdict: str
    nominal: float = Field(gt=0, le=1)
    """Level that p was compared with at this look; 0.05 for an e-process."""
    same_nominal: float = Field(gt=0, le=1)
    """The same for each side of sameness."""
    p: float | None = Field(None, ge=0, le=1)
    same_p: float | None = Field(None, ge=0, le=1)
    ratio: float | None = Field(None, gt=0)
    low: float | None = Field(None, gt=0)
    """Ends of the repeated interval: at 1 - nominal; a confidence sequence for an e-process."""
    high: float | None = Field(None, gt=0)
    at_ms: float = 0.0
    """Wall clock, milliseconds since 1970."""


def latest(lines: Iterable[Look]) -> tuple[Look, ...]:
    """Return the last line of every look, by number: a look is taken again after a trial before it ran again."""
    return tuple(sorted({line.number: line for line in lines}.values(), key=lambda line: line.number))


def end_of(looks: Sequence[Look]) -> int | None:
    """Return the pairs after which the run ended; None if it goes on."""
    return next((look.n for look in looks if look.decision in ENDS), None)
