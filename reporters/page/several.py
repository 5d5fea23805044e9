"""Several runs that do not fit one record, as one self-contained page: a section for each, with the reason.

The figures are those for papers, as SVG inside the page. The page has no script, so it reads the same offline, printed
or mailed. It links to the full report of each section.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from repro.compare.findings import findings
from repro.tables.text import plural
from repro.tables.verdicts import FOOTNOTE

from ..paper.brief import Brief, brief
from ..paper.figures import figures, rendered_figure
from .axis import Axis, around_one
from .document import rendered
from .speedup import Forest, forest

if TYPE_CHECKING:
    from repro.compare.runs.merge import Section


@dataclass(frozen=True, slots=True)
class Part:
    """One section on the page."""

    section: Section
    found: Brief
    forest: Forest
    pictures: tuple[tuple[str, str], ...]
    """(SVG as a data URI, caption) of its figures."""


def render(sections: Sequence[Section]) -> str:
    """Render the page: the same bytes for the same sections."""
    parts = [Part(section, brief(section.record), forest(findings(section.record)), _pictures(section))
             for section in sections]
    runs = plural(sum(len(section.sources) for section in sections), "run")
    return rendered("sections.html.j2", {
        "parts": parts, "lead": f"{runs} in {plural(len(parts), 'section')}", "footnote": FOOTNOTE,
        "answers": answers([part.forest for part in parts]),
    })


def _pictures(section: Section) -> tuple[tuple[str, str], ...]:
    drawn = [(rendered_figure(item, "svg"), item.caption) for item in figures(section.record)]
    return tuple((f"data:image/svg+xml;base64,{base64.b64encode(content).decode()}", words) for content, words in drawn)


@dataclass(frozen=True, slots=True)
class Answers:
    """What the drawings of all sections' primary contrasts share."""

    axis: Axis | None
    """None if no section has a ratio of a primary contrast."""
    relative: str
    """Title of the axis; it names each kind of ratio that is drawn."""
    sides: tuple[str, str]
    """Words for a candidate left and right of 1."""


def answers(forests: Sequence[Forest]) -> Answers:
    """Find the axis on which the primary contrasts of all sections are drawn."""
    drawn = [item for item in forests if item.primary and item.primary.ratio]
    values = [shown.value for item in drawn if item.primary
              for shown in (item.primary.ratio, *(item.primary.interval or ())) if shown]
    sides = {(item.spec.below, item.spec.above) for item in drawn}
    return Answers(around_one(values) if drawn else None, " or ".join(dict.fromkeys(item.relative for item in drawn)),
                   sides.pop() if len(sides) == 1 else ("less", "more"))
