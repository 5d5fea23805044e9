"""Several runs that do not stand in one record, as one self-contained page: a section each, and why it stands apart.

Figures are those of the paper, as SVG inside the page; no script, so it reads the same offline, printed or mailed. The
full report of each section lies beside the page and is linked.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from repro.core.files import write_text

from ..paper.figures import figures, rendered_figure
from ..paper.short_tables import FOOTNOTE, Brief, brief
from .html_page import policy, template
from .text import plural, shown

if TYPE_CHECKING:
    from repro.compare.merge import Section

NAME = "report.html"


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure as a data URI, and its words."""

    uri: str
    caption: str


@dataclass(frozen=True, slots=True)
class Part:
    """One section on the page."""

    number: int
    place: str
    """Folder of the section below the page."""
    sources: tuple[str, ...]
    why: str
    notes: tuple[str, ...]
    found: Brief
    pictures: tuple[Picture, ...]


def write(sections: Sequence[Section], out: Path) -> list[str]:
    """Write the page into `out`, the folder that holds the sections' own.

    Raises:
        OutputError: `out` cannot be written.
    """
    path = out / NAME
    write_text(path, render(sections))
    return [str(path)]


def render(sections: Sequence[Section]) -> str:
    """The page: the same bytes for the same sections."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(loader=FunctionLoader(template), autoescape=True, undefined=StrictUndefined,
                              trim_blocks=True, lstrip_blocks=True, finalize=shown)
    parts = [_part(number, section) for number, section in enumerate(sections, 1)]
    page = environment.get_template("several.html.j2").render(
        parts=parts, lead=f"{plural(sum(len(part.sources) for part in parts), 'run')} in "
                          f"{plural(len(parts), 'section')}",
        policy=policy([]), style=Markup(template("report.css")), footnote=FOOTNOTE,
    )
    return page.replace("\r\n", "\n")


def _part(number: int, section: Section) -> Part:
    return Part(
        number=number, place=section.name, sources=section.sources, why=section.why, notes=section.notes,
        found=brief(section.record),
        pictures=tuple(Picture(_uri(rendered_figure(item, "svg")), item.caption) for item in figures(section.record)),
    )


def _uri(content: bytes) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(content).decode()}"
