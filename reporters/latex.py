"""The record as LaTeX for a paper: a file for each table and figure, the numbers as macros, and a short report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from repro.core.files import write_text
from repro.core.numbers import spelled
from repro.record.folder.store import Record
from repro.reporting import Reporter

from .latex_report import PREAMBLE, TABLES, escaped_after, figure_file, joined, latex_files, table_file, text_list
from .paper.brief import brief
from .paper.figures import FOLDER, draw, figures
from .paper.latex_table import compact
from .paper.latex_text import SPECIAL, escaped
from .paper.shown import shown_of
from .paper.words import TextTable
from .text import plural

if TYPE_CHECKING:
    from repro.published.store import Published

    from .published.brief import PublishedBrief

ROWS = 40
"""Most rows of a table of published results; the caption counts the others."""


class LatexPaper(Reporter):
    """`report.tex` and the small files that it inputs, and the figures as PDF and SVG."""

    title: ClassVar[str] = "LaTeX tables (booktabs), macros of the numbers, and figures (PDF, SVG) for a paper"
    narrows: ClassVar[bool] = True
    only: Literal["all", "primary"] = "all"
    """primary: only what belongs to the declared contrast."""
    prefix: str = ""
    """Letters after `repro` in the names of macros, labels and pictures: a paper can hold several runs."""

    def write(self, record: Record, out: Path) -> list[str]:
        """Write `report.tex`, `numbers.tex`, `references.bib`, `tables/` and `figures/` into `out`.

        Raises:
            UsageError: only the declared contrast is asked for, and there is none.
            OutputError: `out` cannot be written.
        """
        part = shown_of(record, self.only == "primary")
        drawn = [replace(item, name=joined(self.prefix, item.name)) for item in figures(record, part)]
        found = latex_files(record, brief(record, part), part, drawn, self.prefix)
        for name, text in found.items():
            write_text(out / name, text)
        return [*(str(out / name) for name in found), *draw(drawn, out)]

    def write_published(self, imports: Sequence[Published], own: Sequence[Record], out: Path) -> list[str]:
        """Write `published.tex`, `tables/` and `figures/` into `out`, own runs into folders below it.

        Raises:
            OutputError: `out` cannot be written.
        """
        from .published.brief import published_brief
        from .published.figures import published_figures
        from .published.tables import own_folders

        drawn = published_figures(imports)
        found = published_files(published_brief(imports), [(item.name, item.caption) for item in drawn])
        for name, text in found.items():
            write_text(out / name, text)
        runs = [place for number, (folder, record) in enumerate(zip(own_folders(own), own, strict=True), 1)
                for place in LatexPaper(only=self.only, prefix=spelled(number) if len(own) > 1 else "").write(
                    record, out / folder)]
        return [*(str(out / name) for name in found), *draw(drawn, out), *runs]


def published_files(found: PublishedBrief, drawn: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return path -> text of every file on published results but the pictures."""
    tables = {f"{TABLES}/published-{kind}-{number}.tex": _published_table(table, f"published-{kind}-{number}")
              for kind, several in (("scores", found.scores), ("batch", found.costs))
              for number, table in enumerate(several, 1)}
    figures = {f"{FOLDER}/{name}.tex": figure_file(name, caption) for name, caption in drawn}
    facts = [f"{key}: {value}" for key, value in found.facts]
    refused = [f"{source}: {reason}" for source, reason in found.refused]
    refused += [f"{found.refused_left_out} more are in refused.jsonl"] if found.refused_left_out else []
    blocks = [f"% Written by repro. published figures\n{PREAMBLE}\\begin{{document}}\n",
              f"\\section*{{{escaped(found.title)}}}",
              "All figures: \\emph{published} by others.",
              *text_list("What to know before using these figures", found.doubts), *text_list("Source", facts),
              *text_list("Refused files", refused),
              *(f"\\input{{{path.removesuffix('.tex')}}}" for path in (*tables, *figures)), "\\end{document}"]
    return {"published.tex": "\n\n".join(blocks) + "\n", **tables, **figures}


def _published_table(table: TextTable, name: str) -> str:
    """Return the file of a table. One with more than `ROWS` rows keeps the first and says so."""
    left = len(table.rows) - ROWS
    more = f" {plural(left, 'row')} omitted; the CSV tables contain all." if left > 0 else ""
    kept = compact(TextTable(table.title, table.headers, table.numeric, table.rows[:ROWS]))
    return table_file(kept.table, f"{escaped(table.title)}. All figures \\emph{{published}} by others."
                                  f"{escaped_after(more)}{escaped_after(kept.said)}", name)


__all__ = ["ROWS", "SPECIAL", "LatexPaper", "escaped", "published_files"]
