"""The record for a paper: LaTeX with a file for each table and figure, the numbers as macros; or its figures alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal

from repro.compare import Comparison
from repro.compare.design.effect import MainEffect
from repro.core.files import write_text
from repro.record.folder.store import Record
from repro.reporting import Reporter
from repro.tables.layout import TextTable, compact
from repro.tables.text import plural
from repro.tables.values import plain
from repro.tables.verdicts import FOOTNOTE

from .page.sections.settings import bibtex
from .paper.brief import Brief, Shown, brief, shown_of
from .paper.figures import FOLDER, Drawing, draw, figures
from .paper.latex_numbers import macros, numbers_file
from .paper.latex_text import escaped, latex_table

TABLES = "tables"
LEFT_OUT = ("Factors, exploratory",)
"""Headers of columns of sentences; the page and the CSV tables have them."""
PACKAGES = r"\usepackage{array,booktabs,longtable,graphicx}"
PREAMBLE = f"""\
\\documentclass[10pt,a4paper]{{article}}
\\usepackage[T1]{{fontenc}}
\\usepackage[utf8]{{inputenc}}
\\usepackage{{textcomp}}
\\usepackage[margin=25mm]{{geometry}}
{PACKAGES}
\\setlength{{\\emergencystretch}}{{6em}}
\\renewcommand{{\\topfraction}}{{0.95}}
\\renewcommand{{\\bottomfraction}}{{0.9}}
\\renewcommand{{\\textfraction}}{{0.05}}
\\renewcommand{{\\floatpagefraction}}{{0.9}}
"""
LONGEST = 240
"""Most characters of one warning in a paper; the page has all of it."""


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


class PaperFigures(Reporter):
    """PDF and SVG of every figure, in `figures/`."""

    title: ClassVar[str] = "Figures as PDF and SVG"

    def write(self, record: Record, out: Path) -> list[str]:
        """Write `figures/*.pdf` and `figures/*.svg` into `out`."""
        return draw(figures(record), out)


def latex_files(
    record: Record, found: Brief, part: Shown, drawn: Sequence[Drawing], prefix: str = ""
) -> dict[str, str]:
    """Return path -> text of every file but the pictures; the names of `drawn` have the prefix already."""
    tables = {f"{TABLES}/{name}.tex": _table(prefix, name, table, found)
              for name, table in found.tables.items()}
    figures = {f"{FOLDER}/{item.name}.tex": figure_file(item.name, item.caption) for item in drawn}
    return {"report.tex": _report(record, found, part, [*tables, *figures]), **tables, **figures,
            "numbers.tex": numbers_file(macros(record, part), prefix), "references.bib": bibtex(record)}


def joined(prefix: str, name: str) -> str:
    """Return the name of a label or a picture: `cells`, or `Large-cells` with a prefix."""
    return f"{prefix}-{name}" if prefix else name


def _table(prefix: str, name: str, table: TextTable, found: Brief) -> str:
    foot = FOOTNOTE if name == "comparisons" else ""
    short, said = compact(table.without(LEFT_OUT))
    origins = " and ".join(found.origins)
    said = said.replace(f"Figures: {origins}.", "").strip()
    caption = f"{escaped(table.title)}. {_origin(table, origins)}{escaped_after(said)}{escaped_after(foot)}"
    return table_file(short, caption, joined(prefix, name))


def _origin(table: TextTable, origins: str) -> str:
    """Return the label of the figures; a table of measurements also has counted and modelled ones."""
    place = table.headers.index("Figures") if "Figures" in table.headers else None
    found = list(dict.fromkeys(row[place] for row in table.rows)) if place is not None else [origins]
    if len(found) == 1:
        return f"All figures \\emph{{{escaped(origins)}}}."
    marked = ", ".join(f"\\emph{{{escaped(word)}}}" for word in found)
    return f"Figures, as each row says: {marked}."


def table_file(table: TextTable, caption: str, name: str) -> str:
    """Return the file of one table; the caption is already LaTeX."""
    return f"% Written by repro; in the preamble: {PACKAGES}\n{latex_table(table, caption, f'tab:repro-{name}')}\n"


def escaped_after(text: str) -> str:
    """Escape words that follow others, with the space between."""
    return f" {escaped(text)}" if text.strip() else ""


def figure_file(name: str, caption: str) -> str:
    """Return a figure of one column; its picture stands in the same folder."""
    return "\n".join([
        "% Written by repro; in the preamble: \\usepackage{graphicx}, and \\graphicspath{{FOLDER/}} from elsewhere",
        r"\begin{figure}[htbp]", r"\centering", r"\ifdim\columnwidth>3.5in",
        f"\\includegraphics{{{FOLDER}/{name}.pdf}}", r"\else",
        f"\\includegraphics[width=\\columnwidth]{{{FOLDER}/{name}.pdf}}", r"\fi",
        f"\\caption{{{escaped(caption)}}}\\label{{fig:repro-{name}}}", r"\end{figure}",
    ]) + "\n"


def _report(record: Record, found: Brief, part: Shown, inputs: Sequence[str]) -> str:
    only = "" if part.whole else " (the declared contrast only)"
    facts = "; ".join(f"{key}: {value}" for key, value in found.facts)
    blocks = [f"% Written by repro. {' and '.join(found.origins)} figures\n{PREAMBLE}\\input{{numbers}}\n"
              "\\begin{document}\n",
              f"\\section*{{{escaped(found.title + only)}}}",
              *(f"\\noindent\\textbf{{{escaped(item.verdict)}}}: {escaped(item.contrast)}: {escaped(item.why)}\n"
                for item in found.verdicts[:len(_led(part))]),
              *([f"Errors: {escaped(found.errors)}."] if found.errors else []),
              *text_list("Warnings", found.doubts), *text_list("Cautions of verdicts", _cautions(part)),
              f"\\paragraph{{Record}} {escaped(facts)}.",
              *(f"\\input{{{path.removesuffix('.tex')}}}" for path in inputs),
              "\\raggedright\n\\nocite{*}\n\\bibliographystyle{plain}\n\\bibliography{references}\n\\end{document}"]
    return "\n\n".join(blocks) + "\n"


def _led(part: Shown) -> Sequence[Comparison | MainEffect]:
    """Return the declared contrast; without one the main effects, or the only verdict."""
    primary = [item for item in part.comparisons if item.primary]
    return primary or part.effects or (part.comparisons if len(part.comparisons) == 1 else ())


def _cautions(part: Shown) -> list[str]:
    """Return what stands beside the verdicts of the tables: further differences and cautions, each once."""
    told: list[tuple[str, str]] = []
    leading = _led(part)
    for item in (item for item in part.comparisons if item not in leading):
        words = [f"it {item.also}"] if item.also else []
        told += [(f"{item.candidate_label} against {item.baseline_label}", text) for text in (*words, *item.cautions)]
    for effect in (item for item in part.effects if item not in leading):
        words = [f"it {text}" for text in (*(other.words for other in effect.flagged), effect.pooled.also) if text]
        told += [(f"main effect of {effect.factor}, {effect.level} against {effect.reference}", text)
                 for text in (*words, *effect.pooled.cautions)]
    alike: dict[str, list[tuple[str, str]]] = {}
    for subject, text in told:
        alike.setdefault(re.sub(r"[\d.]+", "#", text), []).append((subject, text))
    return [f"{plain(subject)}: {plain(text)}" + (f" (and {plural(len(rest), 'other verdict')} alike)" if rest else "")
            for (subject, text), *rest in alike.values()]


def text_list(title: str, texts: Iterable[str]) -> list[str]:
    """Return a paragraph with a list of texts, long ones cut; nothing without a text."""
    found = [text if len(text) <= LONGEST else f"{text[:LONGEST].rstrip()} ... (in full on the HTML page)"
             for text in texts]
    if not found:
        return []
    items = "\n".join(f"  \\item {escaped(text)}" for text in found)
    return [f"\\paragraph{{{title}}}\n\\begin{{itemize}}\\setlength{{\\itemsep}}{{0pt}}\\sloppy\n{items}\n"
            "\\end{itemize}"]
