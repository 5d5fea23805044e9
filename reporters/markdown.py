"""The record as Markdown for a README, an issue or a pull request: verdicts, two tables, cautions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from repro.core.files import write_text
from repro.core.markdown import escaped
from repro.record.folder.store import Record
from repro.reporting import Reporter
from repro.tables.layout import as_markdown
from repro.tables.verdicts import FOOTNOTE

from .paper.brief import Brief, brief

if TYPE_CHECKING:
    from repro.compare.runs.merge import Section


class MarkdownPage(Reporter):
    """`report.md`, as GitHub renders it: no name in it becomes a link, a mention or markup."""

    title: ClassVar[str] = "Markdown for a README or a pull request"

    def write(self, record: Record, out: Path) -> list[str]:
        """Write `report.md` into `out`."""
        path = out / "report.md"
        write_text(path, render(brief(record)))
        return [str(path)]

    def write_sections(self, sections: Sequence[Section], out: Path) -> list[str]:
        """Write `report.md` into `out`: every section, with the reason why it is separate."""
        path = out / "report.md"
        write_text(path, render_sections(sections))
        return [str(path)]


def render(found: Brief) -> str:
    """Render the document; it names the origin above all figures and in every row of the tables."""
    parts = [f"# {escaped(found.title)}", f"All figures: **{escaped(' and '.join(found.origins))}**.",
             "\n".join(f"- {escaped(key)}: {escaped(value)}" for key, value in found.facts)]
    if found.doubts:
        parts += [CAUTIONS, "\n".join(f"- {escaped(text)}" for text in found.doubts)]
    parts += ["## Verdicts", "\n".join(f"- **{item.verdict}**: {escaped(item.contrast)}: {escaped(item.why)}"
                                       for item in found.verdicts) or NO_BASELINE]
    parts += [f"Errors: {escaped(found.errors)}."] if found.errors else []
    for table in found.tables.values():
        parts += [f"## {escaped(table.title)}", as_markdown(table)]
    if "comparisons" in found.tables:
        parts.append(escaped(FOOTNOTE))
    return "\n\n".join(parts) + "\n"


def render_sections(sections: Sequence[Section]) -> str:
    """Render one document of sections; the headings of a section are one level down."""
    parts = ["# Reports of several runs", SEPARATE]
    for number, section in enumerate(sections, 1):
        about = [f"runs: {'; '.join(section.sources)}"]
        about += [f"separate from section 1: {section.why}"] if section.why else []
        found = render(brief(section.record)).replace("# ", f"# Section {number}: ", 1)
        parts += [re.sub("^#", "##", found, flags=re.MULTILINE).rstrip("\n"),
                  "\n".join(f"- {escaped(text)}" for text in (*about, *section.notes))]
    return "\n\n".join(parts) + "\n"


CAUTIONS = "## What to know before using these figures"
NO_BASELINE = "No cell of this record has a baseline, so there is nothing to compare."
SEPARATE = "Each section is one experiment on one machine; figures of different sections are not compared."
