"""Published results in the formats of the built-in reporters, which themselves write runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from repro.core.files import write_text
from repro.core.markdown import escaped as in_markdown
from repro.core.numbers import spelled
from repro.published.store import Published
from repro.record.folder.store import Record
from repro.reporting import Reporter
from repro.tables.layout import TextTable, as_markdown, compact
from repro.tables.text import plural

from .. import markdown
from ..latex import PREAMBLE, TABLES, LatexPaper, escaped_after, figure_file, table_file, text_list
from ..paper.figures import FOLDER, draw
from ..paper.latex_text import escaped
from ..table_files import write_csv, write_lines, write_parquet
from . import page
from .brief import PublishedBrief, published_brief
from .figures import published_figures
from .tables import ORIGIN, own_folders, published_tables, write_own

ROWS = 40
"""Most rows of a LaTeX table; the caption counts the others."""
Writer = Callable[[Reporter, Sequence[Published], Sequence[Record], Path], list[str]]


def _html(reporter: Reporter, imports: Sequence[Published], own: Sequence[Record], out: Path) -> list[str]:
    return page.write(imports, own, out)


def _csv(reporter: Reporter, imports: Sequence[Published], own: Sequence[Record], out: Path) -> list[str]:
    return [*write_csv(published_tables(imports), out), *write_own(reporter, own, out)]


def _parquet(reporter: Reporter, imports: Sequence[Published], own: Sequence[Record], out: Path) -> list[str]:
    about = {"origin": ORIGIN, "results_sha256": ",".join(item.record.results_sha256 for item in imports)}
    return [*write_parquet(published_tables(imports), about, out), *write_own(reporter, own, out)]


def _json_lines(reporter: Reporter, imports: Sequence[Published], own: Sequence[Record], out: Path) -> list[str]:
    return [*write_lines(published_tables(imports), out / "published.jsonl"), *write_own(reporter, own, out)]


def _figures(reporter: Reporter, imports: Sequence[Published], own: Sequence[Record], out: Path) -> list[str]:
    return [*draw(published_figures(imports), out), *write_own(reporter, own, out)]


def _markdown(reporter: Reporter, imports: Sequence[Published], own: Sequence[Record], out: Path) -> list[str]:
    path, places = out / "published.md", [f"{folder}/report.md" for folder in own_folders(own)]
    write_text(path, render_markdown(published_brief(imports), places))
    return [str(path), *write_own(reporter, own, out)]


def _latex(reporter: Reporter, imports: Sequence[Published], own: Sequence[Record], out: Path) -> list[str]:
    drawn = published_figures(imports)
    found = latex_files(published_brief(imports), [(item.name, item.caption) for item in drawn])
    for name, text in found.items():
        write_text(out / name, text)
    runs = [place for number, (folder, record) in enumerate(zip(own_folders(own), own, strict=True), 1)
            for place in LatexPaper(prefix=spelled(number) if len(own) > 1 else "").write(record, out / folder)]
    return [*(str(out / name) for name in found), *draw(drawn, out), *runs]


WRITERS: dict[str, Writer] = {
    "html": _html, "markdown": _markdown, "latex": _latex, "figures": _figures, "csv": _csv, "parquet": _parquet,
    "jsonl": _json_lines,
}
"""Name of a reporter -> what writes imports in its format, and own runs separately; it returns the paths."""


def render_markdown(found: PublishedBrief, own: Sequence[str] = ()) -> str:
    """Render the document of published results; `own`: paths of the reports on own runs."""
    parts = [f"# {in_markdown(found.title)}", "All figures: **published** by others.",
             "\n".join(f"- {in_markdown(key)}: {in_markdown(value)}" for key, value in found.facts),
             markdown.CAUTIONS, "\n".join(f"- {in_markdown(text)}" for text in found.doubts)]
    for table in (*found.scores, *found.costs):
        parts += [f"## {in_markdown(table.title)}", as_markdown(table)]
    if found.refused:
        rest = [f"- {found.refused_left_out} more are in refused.jsonl"] if found.refused_left_out else []
        parts += ["## Refused files", "\n".join([*(f"- {in_markdown(source)}: {in_markdown(reason)}"
                                                   for source, reason in found.refused), *rest])]
    if own:
        parts += ["## Run here", "These results are not published, and no ratio compares them with those above: "
                  f"{', '.join(in_markdown(place) for place in own)}."]
    return "\n\n".join(parts) + "\n"


def latex_files(found: PublishedBrief, drawn: Sequence[tuple[str, str]]) -> dict[str, str]:
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
    kept, said = compact(table.first(ROWS))
    return table_file(kept, f"{escaped(table.title)}. All figures \\emph{{published}} by others."
                                  f"{escaped_after(more)}{escaped_after(said)}", name)
