"""The first screen of several runs: the primary contrast of each section, with all ratios on one axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from repro.compare.findings import findings

from ..axis import Axis, around_one
from .speedup import Forest, Ratio, forest

if TYPE_CHECKING:
    from repro.compare.runs.merge import Section


@dataclass(frozen=True, slots=True)
class Answer:
    """The primary contrast of one section."""

    number: int
    sources: tuple[str, ...]
    row: Ratio | None
    """None if the suite declares no primary contrast."""
    contrasts: int
    decided: int
    """Contrasts of the section with a verdict."""
    dot: float | None
    """Place of the ratio, per cent of the width, as are the ends of `bar`."""
    bar: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers of all sections."""

    rows: tuple[Answer, ...]
    axis: Axis | None
    """None if no section has a ratio of a primary contrast."""
    one: float
    relative: str
    """Title of the axis; it names each kind of ratio that is drawn."""
    sides: tuple[str, str]
    """Words for a candidate left and right of 1."""


def section_answers(parts: Sequence[Section]) -> Answers:
    """Collect the primary contrast of each section."""
    found = [(part, forest(findings(part.record))) for part in parts]
    drawn = [(known, known.primary) for _, known in found if known.primary and known.primary.ratio]
    axis = around_one([value for _, row in drawn for value in _values(row)]) if drawn else None
    sides = {known.sides for known, _ in drawn}
    return Answers(
        rows=tuple(_answer(number, part, known, axis) for number, (part, known) in enumerate(found, 1)),
        axis=axis, one=axis.at(1.0) if axis else 50.0,
        relative=" or ".join(dict.fromkeys(known.relative for known, _ in drawn)),
        sides=sides.pop() if len(sides) == 1 else ("less", "more"),
    )


def _values(row: Ratio) -> list[float]:
    return [item.value for item in (row.ratio, *(row.interval or ())) if item is not None]


def _answer(number: int, part: Section, known: Forest, axis: Axis | None) -> Answer:
    row = known.primary
    places = [axis.at(value) for value in _values(row)] if axis and row and row.ratio else []
    return Answer(
        number=number, sources=part.sources, row=row, contrasts=len(known.rows),
        decided=sum(not item.open for item in known.rows),
        dot=places[0] if places else None, bar=(places[1], places[2]) if len(places) == 3 else None,
    )
