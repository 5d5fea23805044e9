"""Published results in the formats of the built-in reporters, which themselves write runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from repro.core.files import write_text
from repro.core.markdown import escaped as in_markdown
from repro.core.numbers import spelled
from repro.published.brief import PublishedBrief, published_brief
from repro.published.cells import batch_costs
from repro.published.record import PublishedCell
from repro.published.speedrun.claims import ArmClaim, claim_tracks
from repro.published.store import Published, by_question
from repro.published.tables import ORIGIN, published_tables
from repro.record.folder.store import Record
from repro.reporting import Reporter
from repro.tables.layout import TextTable, as_markdown, compact, name
from repro.tables.text import plural

from .. import markdown
from ..latex import PREAMBLE, TABLES, LatexPaper, escaped_after, figure_file, table_file, text_list
from ..paper.figures import COLORS, FOLDER, SMALL, TALL, Drawing, draw, head_rows, left_out, shown_text
from ..paper.latex_text import escaped
from ..table_files import write_csv, write_lines, write_parquet
from . import view
from .charts import SPAN, batch_ticks

MARKERS = "osD^vPX*"
MARKS = {"supported": ("o", COLORS[2]), "not supported": ("x", COLORS[1]), "cannot be tested": ("D", COLORS[7])}


def published_figures(imports: Sequence[Published]) -> list[Drawing]:
    """Return all figures; none if no run has a time."""
    scored = [item for item in imports if item.record.contest is None]
    return [*_scores(scored), *_batches(imports), *claim_figures(imports)]


def _scores(imports: Sequence[Published]) -> list[Drawing]:
    """Draw the runs and score of every system, one figure for each benchmark and round, the shortest on top."""
    drawn: list[Drawing] = []
    for item in imports:
        minutes = {cell_id: [run.seconds / 60 for run in runs if run.seconds is not None]
                   for cell_id, runs in item.by_cell().items()}
        timed = by_question(cell for cell in item.record.cells if minutes[cell.cell_id])
        for (round_name, benchmark), cells in timed.items():
            kept = sorted(cells, key=lambda cell: cell.place)[:TALL]
            caption = (f"Minutes to target of {name(benchmark)}, {name(round_name)}: each point is a run with a "
                       f"time, the vertical line a valid score. Figures: published by others."
                       f"{left_out(kept, cells, 'system')}")
            drawn.append(Drawing(f"published-scores-{len(drawn) + 1}", caption, 0.7 + 0.36 * len(kept),
                                 partial(_draw_scores, [(cell, minutes[cell.cell_id]) for cell in kept])))
    return drawn


def _draw_scores(cells: Sequence[tuple[PublishedCell, list[float]]], figure: Any) -> None:
    pane = figure.subplots()
    for place, (cell, minutes) in enumerate(cells):
        color = COLORS[place % len(COLORS)]
        pane.plot(minutes, [place + 0.12 * (index % 3 - 1) for index in range(len(minutes))], "o", markersize=2.5,
                  color=color, alpha=0.7, linewidth=0)
        if cell.score.valid and cell.score.minutes is not None:
            pane.plot([cell.score.minutes], [place], "|", color=color, markersize=9, markeredgewidth=1.4)
    head_rows(pane, [f"{name(cell.factors['org'])} {name(cell.factors['system'])}" for cell, _ in cells])
    everything = [value for _, minutes in cells for value in minutes]
    if min(everything) > 0 and max(everything) / min(everything) > SPAN:
        pane.set_xscale("log")
        pane.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")  # the default writes formulas
        pane.xaxis.set_minor_formatter("")
        pane.set_xlabel("minutes to target (logarithmic) [published]")
    else:
        pane.set_xlim(left=0)
        pane.set_xlabel("minutes to target [published]")


def _batches(imports: Sequence[Published]) -> list[Drawing]:
    """Draw the cost of larger batches, one figure for each benchmark and unit over all rounds and imports."""
    found: dict[tuple[str, str], dict[str, list[tuple[int, float]]]] = {}
    for item in imports:
        for of in batch_costs(item.results):
            points = [(cost.global_batch_size, value) for cost, value in of.points(of.unit)]
            if points:
                found.setdefault((of.benchmark, of.unit), {}).setdefault(of.round, []).extend(points)
    drawn = []
    for number, ((benchmark, unit), by_round) in enumerate(sorted(found.items()), 1):
        count = sum(len(points) for points in by_round.values())
        reference = sorted({(point.global_batch_size, sum(point.costs) / len(point.costs))
                            for item in imports for point in item.record.references
                            if (point.benchmark, point.unit) == (benchmark, unit)})
        means = " Diamonds: mean of the reference's runs (RCP)." if reference else ""
        caption = (f"{unit.capitalize()} to the target of {name(benchmark)} against the global batch: "
                   f"{plural(count, 'run')} that reached it; lines join the medians of each batch in a round. "
                   f"Batch, hyper-parameters and system change together.{means} Figures: published by others.")
        drawn.append(Drawing(f"published-batch-{number}", caption, 3.0,
                             partial(_draw_batches, unit, by_round, reference)))
    return drawn


def _draw_batches(
    unit: str, by_round: dict[str, list[tuple[int, float]]], reference: Sequence[tuple[int, float]], figure: Any
) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator

    pane = figure.subplots()
    for index, (round_name, points) in enumerate(by_round.items()):
        color = COLORS[index % len(COLORS)]
        pane.plot([x for x, _ in points], [y for _, y in points], MARKERS[index % len(MARKERS)], markersize=4,
                  color=color, alpha=0.7, linewidth=0, label=shown_text(round_name))
        sizes = sorted({x for x, _ in points})
        pane.plot(sizes, [median(y for x, y in points if x == size) for size in sizes], "--", color=color,
                  linewidth=0.9)
    if reference:
        pane.plot([x for x, _ in reference], [y for _, y in reference], "D", markersize=4, color="#7f7f7f",
                  markerfacecolor="none", linewidth=0, label="reference (RCP)")
    pane.set_xscale("log", base=2)
    pane.xaxis.set_major_locator(FixedLocator(batch_ticks(
        [x for points in (*by_round.values(), reference) for x, _ in points])))
    pane.xaxis.set_minor_locator(NullLocator())
    pane.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    pane.set_ylim(bottom=0)
    pane.set_xlabel("global batch, samples (logarithmic)")
    pane.set_ylabel(f"{unit} to the target [published]")
    figure.legend(loc="outside lower left", fontsize=SMALL)


def claim_figures(imports: Sequence[Published]) -> list[Drawing]:
    """Draw the progression of each track with at least two dates."""
    found: list[Drawing] = []
    for item in imports:
        for track, claims in claim_tracks(item).items():
            known = [claim for claim in claims if claim.date and claim.seconds and not claim.baseline]
            if len({claim.date for claim in known}) > 1:
                found.append(Drawing(
                    f"published-progression-{len(found) + 1}",
                    f"Mean time of each record of {name(track)} by the program's clock, with its 95 % interval; "
                    "the mark says whether its own logs support its quality. The machines differ. Figures: published "
                    "by others.", 3.0, partial(_draw_claims, known)))
    return found


def _draw_claims(claims: Sequence[ArmClaim], figure: Any) -> None:
    from matplotlib.dates import AutoDateLocator

    pane = figure.subplots()
    for verdict, (mark, color) in MARKS.items():
        chosen = [claim for claim in claims if claim.quality.verdict == verdict]
        if not chosen:
            continue
        middle = [claim.seconds or 0.0 for claim in chosen]
        bounds = [claim.seconds_interval or (seconds, seconds) for claim, seconds in zip(chosen, middle, strict=True)]
        pane.errorbar(
            [date.fromisoformat(claim.date or "") for claim in chosen], middle,
            yerr=[[seconds - low for seconds, (low, _) in zip(middle, bounds, strict=True)],
                  [high - seconds for seconds, (_, high) in zip(middle, bounds, strict=True)]],
            fmt=mark, color=color, markersize=4, elinewidth=0.8, capsize=2, label=f"quality {verdict}")
    pane.set_yscale("log")
    pane.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    pane.yaxis.set_minor_formatter("")
    pane.set_xlabel("date of the record")
    pane.set_ylabel("mean time, seconds (logarithmic) [published]")
    pane.xaxis.set_major_locator(AutoDateLocator(maxticks=5))
    figure.legend(loc="outside lower left", fontsize=SMALL)


ROWS = 40
"""Most rows of a LaTeX table; the caption counts the others."""
Writer = Callable[[Reporter, Sequence[Published], Sequence[Record], Path], list[str]]


def _and_own(write: Callable[[Sequence[Published], Path], list[str]]) -> Writer:
    """Have a reporter write own runs itself, after the imports."""
    def written(reporter: Reporter, imports: Sequence[Published], own: Sequence[Record], out: Path) -> list[str]:
        return [*write(imports, out), *write_own(reporter, own, out)]
    return written


def _parquet(imports: Sequence[Published], out: Path) -> list[str]:
    about = {"origin": ORIGIN, "results_sha256": ",".join(item.record.results_sha256 for item in imports)}
    return write_parquet(published_tables(imports), about, out)


def _markdown(reporter: Reporter, imports: Sequence[Published], own: Sequence[Record], out: Path) -> list[str]:
    path, places = out / "published.md", [f"{folder}/report.md" for folder in own_folders(own)]
    write_text(path, render_markdown(published_brief(imports), places))
    return [str(path), *write_own(reporter, own, out)]


def _latex(reporter: Reporter, imports: Sequence[Published], own: Sequence[Record], out: Path) -> list[str]:
    drawn = published_figures(imports)
    found = latex_files(published_brief(imports), [(item.name, item.caption) for item in drawn])
    for file, text in found.items():
        write_text(out / file, text)
    runs = [place for number, (folder, record) in enumerate(zip(own_folders(own), own, strict=True), 1)
            for place in LatexPaper(prefix=spelled(number) if len(own) > 1 else "").write(record, out / folder)]
    return [*(str(out / name) for name in found), *draw(drawn, out), *runs]


WRITERS: dict[str, Writer] = {
    "html": lambda _, imports, own, out: view.write(imports, own, out), "markdown": _markdown, "latex": _latex,
    "figures": _and_own(lambda imports, out: draw(published_figures(imports), out)),
    "csv": _and_own(lambda imports, out: write_csv(published_tables(imports), out)), "parquet": _and_own(_parquet),
    "jsonl": _and_own(lambda imports, out: write_lines(published_tables(imports), out / "published.jsonl")),
}
"""Name of a reporter -> what writes imports in its format, and own runs separately; it returns the paths."""


def write_own(reporter: Reporter, own: Sequence[Record], out: Path) -> list[str]:
    """Let a reporter write each own run into a separate folder below `out`; return the paths.

    Raises:
        OutputError: `out` cannot be written.
    """
    return [path for folder, record in zip(own_folders(own), own, strict=True)
            for path in reporter.write(record, out / folder)]


def own_folders(own: Sequence[Record]) -> list[str]:
    """Return the folder of each run for `write_own`; numbers, because the name of a suite can hold anything."""
    return [f"own-{number}" for number, _ in enumerate(own, 1)]


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
