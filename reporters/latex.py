"""The record as LaTeX for a paper: a file for each table and figure, the numbers as macros, and a short report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from repro.core.files import write_text
from repro.record.store import Record
from repro.reporting import Reporter

from .latex_report import escaped_after, figure_file, latex_files
from .paper.brief import brief
from .paper.figures import ROWS, draw, figures
from .paper.latex_table import compact, latex_table
from .paper.latex_text import SPECIAL, escaped
from .paper.shown import shown_of
from .paper.words import TextTable
from .text import plural

if TYPE_CHECKING:
    from repro.published.store import Published

    from .published.brief import PublishedBrief

HEAD = """\
% Written by repro. In the preamble: \\usepackage[T1]{fontenc} \\usepackage[utf8]{inputenc} \\usepackage{textcomp}
% \\usepackage{array,booktabs,longtable,graphicx}; then \\input{published} at the place of the tables and figures, with
% \\graphicspath{{...}} if this file and the document are in different folders.
"""


class LatexPaper(Reporter):
    """`report.tex` and the small files that it inputs, and the figures as PDF and SVG."""

    title: ClassVar[str] = "LaTeX tables (booktabs), macros of the numbers, and figures (PDF, SVG) for a paper"
    narrows: ClassVar[bool] = True
    only: Literal["all", "primary"] = "all"
    """primary: only what belongs to the declared contrast."""

    def write(self, record: Record, out: Path) -> list[str]:
        """Write `report.tex`, `numbers.tex`, `references.bib`, `tables/` and `figures/` into `out`.

        Raises:
            UsageError: only the declared contrast is asked for, and there is none.
            OutputError: `out` cannot be written.
        """
        part = shown_of(record, self.only == "primary")
        drawn = figures(record, part)
        found = latex_files(record, brief(record, part), part, drawn)
        for name, text in found.items():
            write_text(out / name, text)
        return [*(str(out / name) for name in found), *draw(drawn, out)]

    def write_published(self, imports: Sequence[Published], own: Sequence[Record], out: Path) -> list[str]:
        """Write `published.tex` and `figures/` into `out`, own runs into folders below it.

        Raises:
            OutputError: `out` cannot be written.
        """
        from .published.brief import published_brief
        from .published.figures import published_figures
        from .published.tables import write_own

        path, drawn = out / "published.tex", published_figures(imports)
        write_text(path, render_published(published_brief(imports), [(item.name, item.caption) for item in drawn]))
        return [str(path), *draw(drawn, out), *write_own(self, own, out)]


def render_published(found: PublishedBrief, drawn: list[tuple[str, str]]) -> str:
    """Render the file of published results. A table too long for a page keeps its first rows and says so."""
    parts = [HEAD, "% published figures"]
    facts = "; ".join(f"{key}: {value}" for key, value in found.facts)
    for table in (*found.scores, *found.costs):
        left = len(table.rows) - ROWS
        more = f" {plural(left, 'row')} omitted; the CSV tables contain all." if left > 0 else ""
        short = TextTable(table.title, table.headers, table.numeric, table.rows[:ROWS])
        kept = compact(short)
        parts.append(latex_table(kept.table, f"{escaped(table.title)}. All figures \\emph{{published}} by others. "
                                             f"{escaped(facts + '.' + more)}{escaped_after(kept.said)}"))
    parts += [*_doubts(found.doubts), *(figure_file(name, caption) for name, caption in drawn)]
    return "\n\n".join(parts) + "\n"


def _doubts(found: Sequence[str]) -> list[str]:
    if not found:
        return []
    items = "\n".join(f"  \\item {escaped(text)}" for text in found)
    return [f"\\paragraph{{What to know before using these figures}}\n\\begin{{itemize}}\n{items}\n\\end{{itemize}}"]


__all__ = ["HEAD", "SPECIAL", "LatexPaper", "escaped", "render_published"]
