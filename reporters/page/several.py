"""Several runs that do not fit one record, as one self-contained page: a section for each, with the reason.

The figures are those for papers, as SVG inside the page. The page has no script, so it reads the same offline, printed
or mailed. It links to the full report of each section.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from repro.compare.findings import findings
from repro.core.files import write_text
from repro.tables.text import plural
from repro.tables.verdicts import FOOTNOTE

from ..paper.brief import Brief, brief
from ..paper.figures import figures, rendered_figure
from .axis import Axis, around_one
from .document import rendered
from .speedup import Forest, Ratio, forest

if TYPE_CHECKING:
    from repro.compare.runs.merge import Section


NAME = "report.html"


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure as a data URI, with its caption."""

    uri: str
    caption: str


@dataclass(frozen=True, slots=True)
class SectionView:
    """One section on the page."""

    number: int
    place: str
    """Folder of the section, relative to the page."""
    sources: tuple[str, ...]
    why: str
    notes: tuple[str, ...]
    found: Brief
    pictures: tuple[Picture, ...]


def write(sections: Sequence[Section], out: Path) -> list[str]:
    """Write the page into `out`, the folder that contains those of the sections.

    Raises:
        OutputError: `out` cannot be written.
    """
    path = out / NAME
    write_text(path, render(sections))
    return [str(path)]


def render(sections: Sequence[Section]) -> str:
    """Render the page: the same bytes for the same sections."""
    parts = [_part(number, section) for number, section in enumerate(sections, 1)]
    runs = plural(sum(len(part.sources) for part in parts), "run")
    lead = f"{runs} in {plural(len(parts), 'section')}"
    values = {"parts": parts, "lead": lead, "footnote": FOOTNOTE, "answers": section_answers(sections)}
    return rendered("sections.html.j2", values)


def _part(number: int, section: Section) -> SectionView:
    return SectionView(
        number=number, place=section.name, sources=section.sources, why=section.why, notes=section.notes,
        found=brief(section.record),
        pictures=tuple(Picture(_uri(rendered_figure(item, "svg")), item.caption) for item in figures(section.record)),
    )


def _uri(content: bytes) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(content).decode()}"


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
