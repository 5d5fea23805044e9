"""The record as Markdown for a README, an issue or a pull request: verdicts, two tables, and what to doubt."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from repro.core.files import write_text
from repro.record.store import Record
from repro.reporting import Reporter

from .brief import FOOTNOTE, Brief, TextTable, brief

if TYPE_CHECKING:
    from repro.compare.merge import Section
    from repro.published.store import Published

    from ..published.brief import PublishedBrief

SPECIAL = re.compile(r"[\\`*_\[\]|~$]")
PINGS = re.compile(r"(?<!&)[@#]")
LISTS = re.compile(r"^(?:[-+=]|\d+[.)](?=\s|$))")


class MarkdownPage(Reporter):
    """`report.md`, as GitHub reads it: nothing in it links, calls a user or runs because of a name."""

    title: ClassVar[str] = "Markdown for a README or a pull request"

    def write(self, record: Record, out: Path) -> list[str]:
        """Write `report.md` into `out`.

        Raises:
            OutputError: `out` cannot be written.
        """
        path = out / "report.md"
        write_text(path, render(brief(record)))
        return [str(path)]

    def write_published(self, imports: Sequence[Published], own: Sequence[Record], out: Path) -> list[str]:
        """Write `published.md` into `out`, runs of one's own into folders below it.

        Raises:
            OutputError: `out` cannot be written.
        """
        from ..published.brief import published_brief
        from ..published.tables import apart, own_folders

        path, places = out / "published.md", [f"{folder}/report.md" for folder in own_folders(own)]
        write_text(path, render_published(published_brief(imports), places))
        return [str(path), *apart(self, own, out)]

    def write_sections(self, sections: Sequence[Section], out: Path) -> list[str]:
        """Write `report.md` into `out`: every section, the later ones with the reason why they stand apart.

        Raises:
            OutputError: `out` cannot be written.
        """
        path = out / "report.md"
        write_text(path, render_sections(sections))
        return [str(path)]


def render(found: Brief) -> str:
    """The document; `origin` stands above every figure and in every row of the tables."""
    parts = [f"# {escaped(found.title)}", f"All figures: **{escaped(found.origin)}**."]
    parts.append("\n".join(f"- {escaped(key)}: {escaped(value)}" for key, value in found.facts))
    if found.doubts:
        parts += ["## Before you believe it", "\n".join(f"- {escaped(text)}" for text in found.doubts)]
    parts.append("## Verdicts")
    parts.append("\n".join(f"- **{item.verdict}**: {escaped(item.contrast)}: {escaped(item.why)}"
                           for item in found.verdicts) or "No cell of this record has a baseline to be compared with.")
    for table in (found.cells, found.comparisons):
        if table.rows:
            parts += [f"## {escaped(table.title)}", rendered(table)]
    if found.comparisons.rows:
        parts.append(escaped(FOOTNOTE))
    return "\n\n".join(parts) + "\n"


def render_sections(sections: Sequence[Section]) -> str:
    """One document of sections; headings of a section are one level down."""
    parts = ["# Reports of several runs", APART]
    for number, section in enumerate(sections, 1):
        told = [f"runs: {'; '.join(section.sources)}"]
        told += [f"apart from section 1: {section.why}"] if section.why else []
        found = render(brief(section.record)).replace("# ", f"# Section {number}: ", 1)
        parts += [re.sub("^#", "##", found, flags=re.MULTILINE).rstrip("\n"),
                  "\n".join(f"- {escaped(text)}" for text in (*told, *section.notes))]
    return "\n\n".join(parts) + "\n"


def render_published(found: PublishedBrief, own: Sequence[str] = ()) -> str:
    """The document of published results; `own`: where runs of one's own are reported."""
    parts = [f"# {escaped(found.title)}", "All figures: **published** by others.",
             "\n".join(f"- {escaped(key)}: {escaped(value)}" for key, value in found.facts),
             "## Before you believe it", "\n".join(f"- {escaped(text)}" for text in found.doubts)]
    for table in (*found.scores, *found.costs):
        parts += [f"## {escaped(table.title)}", rendered(table)]
    if found.refused:
        rest = [f"- {found.refused_left_out} more stand in refused.jsonl"] if found.refused_left_out else []
        parts += ["## Refused files", "\n".join([*(f"- {escaped(source)}: {escaped(reason)}"
                                                   for source, reason in found.refused), *rest])]
    if own:
        parts += ["## Run here", "Not published, and never divided by anything above: "
                  f"{', '.join(escaped(place) for place in own)}."]
    return "\n\n".join(parts) + "\n"


def rendered(table: TextTable) -> str:
    """A pipe table."""
    rule = ["---:" if flush else "---" for flush in table.numeric]
    lines = [[escaped(header) for header in table.headers], rule, *([escaped(cell) for cell in row]
                                                                    for row in table.rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def escaped(text: str) -> str:
    """`text` as Markdown that shows it and does nothing else: no markup, HTML, table cell, link, mention or issue.

    Entities keep GitHub's autolinks from seeing an address; an empty comment, which it drops after looking for them,
    parts the sign of a mention or an issue from its name.
    """
    line = " ".join(text.split())
    line = SPECIAL.sub(r"\\\g<0>", line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))
    line = line.replace("://", "&#58;//").replace("www.", "www&#46;")
    line = PINGS.sub(lambda found: f"{'@' if found[0] == '@' else NUMBER}<!-- -->", line)
    return LISTS.sub(lambda found: f"{found[0][:-1]}&#{ord(found[0][-1])};", line)


NUMBER = "&#35;"
APART = "One section is one experiment on one machine; no figure of one is compared with a figure of another."
