"""What `repro report`, `repro compare` and `repro import` do with published results, and its text for a terminal."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from repro.cli.options import echo_json
from repro.cli.terminal import stdout
from repro.cli.text.compare import cautions_of, print_table
from repro.compare import METRICS
from repro.core.errors import UsageError
from repro.published.brief import claim_doubts, score_tables
from repro.published.comparison.compare import PublishedCompared, any_published, compare_published
from repro.published.comparison.contrast import Entry, PublishedContrast
from repro.published.importing import count_statuses
from repro.published.store import RECORD, REFUSED, Published, read_published
from repro.record.folder.store import read_record
from repro.reporting import reporters
from repro.tables.layout import NOTHING, TextTable, rounded
from repro.tables.verdicts import ratio_and_span

SHOWN_REFUSALS = 8


def report(folders: Sequence[Path], targets: Sequence[str], out: Path | None) -> list[str]:
    """Write published results with each reporter, and the runs among `folders` in separate sections.

    Raises:
        UnknownName: no such reporter.
        UsageError: a reporter cannot write published results.
        OutputError: a folder is neither kind or is damaged, or `out` cannot be written.
    """
    named = reporters(targets)
    # Reporters are plug-ins, so they are imported by name.
    known = importlib.import_module("repro.reporters.published.formats").WRITERS
    writers = []
    for name, item in named.items():  # before anything is written
        writer = partial(known[name], item) if name in known else getattr(item, "write_published", None)
        if item.unpublishable or writer is None:
            reason = item.unpublishable or "it supports only runs of this harness"
            raise UsageError(f"--to {name} cannot write published results: {reason}")
        writers.append(writer)
    foreign = [folder for folder in folders if any_published([folder])]
    imports = [read_published(folder) for folder in foreign]
    own = [read_record(folder) for folder in folders if folder not in foreign]
    place = out or foreign[0] / "report"
    return [written for writer in writers for written in writer(imports, own, place)]


def compare(runs: Sequence[Path], as_json: bool, candidate: str | None, request: dict[str, Any]) -> None:
    """Compare published results, print them, and exit."""
    found = compare_published(runs, candidate=candidate, **request)
    if as_json:
        echo_json(found.as_json(), "compare published")
    else:
        print_published(found)
    sys.exit(found.exit_code)


def print_published(found: PublishedCompared) -> None:
    """Print the scores, the ratios, the verdicts and their reasons."""
    console = stdout(200)
    console.lines(f"published results: {', '.join(found.folders)}; {METRICS[found.metric].noun}")
    print_table(_scores(found.entries), console)
    print_table(_ratios(found.contrasts), console, numbered=True)
    for number, item in enumerate(found.contrasts, 1):
        console.lines(f"{number}. {item.comparison.spoken}: {item.comparison.because}")
        if item.score_because and item.score_because not in item.comparison.because:
            console.lines(f"   no ratio of scores: {item.score_because}")
    compared = [item.comparison for item in found.contrasts]
    console.lines(*cautions_of(compared), *(f"failed: {text}" for text in found.failures))


def _scores(cells: Sequence[Entry]) -> TextTable:
    return TextTable(
        "", ("Cell", "Division", "Accelerators", "Runs", "Without time", "Score, min", "Note"),
        (False, False, True, True, True, True, False),
        tuple((item.label, item.factor("division") or NOTHING, item.factor("accelerators") or NOTHING,
               str(item.cell.score.runs), str(item.cell.score.failed), rounded(item.cell.score.minutes, 4),
               item.cell.score.reason or NOTHING) for item in cells))


def _ratios(found: Sequence[PublishedContrast]) -> TextTable:
    return TextTable(
        "", ("Candidate", "Baseline", "Score ratio", "Welch ratio", "95 % interval", "Runs", "p", "p Holm", "Verdict"),
        (False, False, True, True, True, True, True, True, False),
        tuple((of.candidate_label, of.baseline_label, *(text or NOTHING for text in (
                   ratio_and_span(item.score_ratio, None)[0], *ratio_and_span(of.ratio, of.interval))),
               f"{item.candidate_score.runs}, {item.baseline_score.runs}",
               *(NOTHING if p is None else f"{p:.3g}" for p in (of.p, of.p_adjusted)), of.verdict)
              for item in found for of in (item.comparison,)))


def print_import(published: Published) -> None:
    """Print the scores or claims, what the logs do not support, the refused files, and the counts."""
    console = stdout(200)
    for table in score_tables(published):
        print_table(table, console)
    console.lines(*claim_doubts(published))
    more = len(published.refused) - SHOWN_REFUSALS
    counts = ", ".join(f"{count} {status}" for status, count in count_statuses(published).items())
    console.lines(*(f"refused  {item.source}: {item.reason}" for item in published.refused[:SHOWN_REFUSALS]),
        *([f"refused  {more} more: {published.folder / REFUSED}"] if more > 0 else []),
        f"{len(published.results)} results ({counts}), {len(published.refused)} files refused; "
        f"{published.folder / RECORD}")
