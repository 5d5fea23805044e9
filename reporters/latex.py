"""The record as LaTeX for a paper: two booktabs tables, the verdicts as a list, and the figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from repro.core.files import write_text
from repro.record.store import Record
from repro.reporting import Reporter

from .paper.brief import FOOTNOTE, Brief, brief
from .paper.figures import FOLDER, ROWS, draw, figures
from .paper.words import TextTable
from .tex_text import escaped
from .text import plural

if TYPE_CHECKING:
    from repro.published.store import Published

    from .published.brief import PublishedBrief

HEAD = """\
% Written by repro. In the preamble: \\usepackage[T1]{fontenc} \\usepackage[utf8]{inputenc} \\usepackage{textcomp}
% \\usepackage{booktabs} \\usepackage{graphicx}; then \\input{report} at the place of the tables and figures, with
% \\graphicspath{{...}} if this file and the document are in different folders.
"""


class LatexPaper(Reporter):
    """`report.tex` for `\\input`, and the figures as PDF and SVG."""

    title: ClassVar[str] = "LaTeX tables (booktabs) and figures (PDF, SVG) for a paper"

    def write(self, record: Record, out: Path) -> list[str]:
        """Write `report.tex` and `figures/` into `out`.

        Raises:
            OutputError: `out` cannot be written.
        """
        path = out / "report.tex"
        drawn = figures(record)
        write_text(path, render(brief(record), [(item.name, item.caption) for item in drawn]))
        return [str(path), *draw(drawn, out)]

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


def render(found: Brief, drawn: list[tuple[str, str]]) -> str:
    """Render the file; `drawn`: name and caption of every figure."""
    parts = [HEAD, f"% {' and '.join(found.origins)} figures",
             *(_table(table, _caption(table, found)) for table in found.tables)]
    if found.verdicts:
        items = "\n".join(f"  \\item \\textbf{{{escaped(item.verdict)}}}: {escaped(item.contrast)}: {escaped(item.why)}"
                          for item in found.verdicts)
        parts.append(f"\\begin{{itemize}}\n{items}\n\\end{{itemize}}")
    parts += [f"Errors: {escaped(found.errors)}."] if found.errors else []
    parts += _doubts(found.doubts)
    parts += [_figure(name, caption) for name, caption in drawn]
    return "\n\n".join(parts) + "\n"


def render_published(found: PublishedBrief, drawn: list[tuple[str, str]]) -> str:
    """Render the file of published results. A table too long for a page keeps its first rows and says so."""
    parts = [HEAD.replace("{report}", "{published}"), "% published figures"]
    facts = "; ".join(f"{key}: {value}" for key, value in found.facts)
    for table in (*found.scores, *found.costs):
        left = len(table.rows) - ROWS
        more = f" {plural(left, 'row')} omitted; the CSV tables contain all." if left > 0 else ""
        short = TextTable(table.title, table.headers, table.numeric, table.rows[:ROWS])
        parts.append(_table(short, f"{escaped(table.title)}. All figures \\emph{{published}} by others. "
                                   f"{escaped(facts + '.' + more)}"))
    parts += [*_doubts(found.doubts), *(_figure(name, caption) for name, caption in drawn)]
    return "\n\n".join(parts) + "\n"


def _doubts(found: Sequence[str]) -> list[str]:
    if not found:
        return []
    items = "\n".join(f"  \\item {escaped(text)}" for text in found)
    return [f"\\paragraph{{What to know before using these figures}}\n\\begin{{itemize}}\n{items}\n\\end{{itemize}}"]


def _caption(table: TextTable, found: Brief) -> str:
    facts = "; ".join(f"{key}: {value}" for key, value in found.facts)
    origins = " and ".join(found.origins)
    foot = f" {FOOTNOTE}" if table is found.comparisons else ""
    return f"{escaped(table.title)}. All figures \\emph{{{escaped(origins)}}}. {escaped(facts + '.' + foot)}"


def _table(table: TextTable, caption: str) -> str:
    columns = "".join("r" if flush else "l" for flush in table.numeric)
    lines = [" & ".join(escaped(cell) for cell in row) + r" \\" for row in (table.headers, *table.rows)]
    return "\n".join([
        r"\begin{table}[htbp]", r"\centering",
        f"\\caption{{{caption}}}",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%", f"\\begin{{tabular}}{{{columns}}}",
        r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule", r"\end{tabular}}", r"\end{table}",
    ])


def _figure(name: str, caption: str) -> str:
    return "\n".join([
        r"\begin{figure}[htbp]", r"\centering", f"\\includegraphics[width=\\linewidth]{{{FOLDER}/{name}.pdf}}",
        f"\\caption{{{escaped(caption)}}}", r"\end{figure}",
    ])
