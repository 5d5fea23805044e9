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

from repro.core.files import write_text
from repro.tables.text import plural
from repro.tables.verdicts import FOOTNOTE

from ..paper.brief import Brief, brief
from ..paper.figures import figures, rendered_figure
from .document import rendered
from .first.section_answers import section_answers

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
