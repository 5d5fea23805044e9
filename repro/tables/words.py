"""Words and tables of short reports, as plain text; each format escapes it."""

from __future__ import annotations

from dataclasses import dataclass

from repro.compare import Bounds
from repro.tables.text import shortened, significant
from repro.tables.values import plain

NOTHING = "-"


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table of text; the `numeric` columns are right-aligned."""

    title: str
    headers: tuple[str, ...]
    numeric: tuple[bool, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class VerdictText:
    """One verdict with its contrast and its reason."""

    verdict: str
    contrast: str
    why: str


def name(text: str) -> str:
    """Shorten a label to one line."""
    return shortened(" ".join(plain(text).split()))


def rounded(value: float | None, digits: int = 3) -> str:
    """Round to three significant digits; a dash if unknown."""
    return NOTHING if value is None else significant(value, digits)


def interval(found: Bounds | None, coverage: str = "") -> str:
    """Format an interval as `0.81 to 0.93 (95 %)`; a dash if there is none.

    Args:
        coverage: instead of the interval's own level.
    """
    if found is None:
        return NOTHING
    level = coverage or f"{100 * found.level:.3g} %"
    return f"{rounded(found.low)} to {rounded(found.high)} ({level})"
