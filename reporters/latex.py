"""The record as LaTeX for a paper: a file for each table and figure, the numbers as macros, and a short report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal

from repro.core.files import write_text
from repro.record.folder.store import Record
from repro.reporting import Reporter

from .latex_report import joined, latex_files
from .paper.brief import brief, shown_of
from .paper.figures import draw, figures
from .paper.latex_text import SPECIAL, escaped


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


__all__ = ["SPECIAL", "LatexPaper", "escaped"]
