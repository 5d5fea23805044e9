"""What `repro report`, `repro compare` and `repro import` do with published results, and its text for a terminal."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from repro.cli.options import echo_json
from repro.cli.terminal import stdout
from repro.cli.text.compare import cautions_of, print_table
from repro.cli.workflows.report import reporters
from repro.compare import METRICS
from repro.core.errors import UsageError
from repro.published.comparison.compare import PublishedCompared, any_published, compare_published
from repro.published.comparison.contrast import Entry, PublishedContrast
from repro.published.importing import count_statuses
from repro.published.record import PublishedCell, PublishedResult
from repro.published.speedrun.claims import ArmClaim, Claims, judge_claims
from repro.published.store import RECORD, REFUSED, Published, read_published
from repro.record.folder.store import read_record
from repro.tables.layout import NOTHING, TextTable

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
        echo_json(found.as_json())
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
        settles = f"; {item.comparison.settles}" if item.comparison.settles else ""
        console.lines(f"{number}. {item.comparison.verdict}: {item.comparison.because}{settles}")
        if item.score_because and item.score_because not in item.comparison.because:
            console.lines(f"   no ratio of scores: {item.score_because}")
    compared = [item.comparison for item in found.contrasts]
    console.lines(*cautions_of(compared), *(f"failed: {text}" for text in found.failures))


def _scores(cells: Sequence[Entry]) -> TextTable:
    return TextTable(
        "", ("Cell", "Division", "Accelerators", "Runs", "Without time", "Score, min", "Note"),
        (False, False, True, True, True, True, False),
        tuple((item.label, item.factor("division") or NOTHING, item.factor("accelerators") or NOTHING,
               str(item.cell.score.runs), str(item.cell.score.failed), _figure(item.cell.score.minutes),
               item.cell.score.reason or NOTHING) for item in cells))


def _ratios(found: Sequence[PublishedContrast]) -> TextTable:
    return TextTable(
        "", ("Candidate", "Baseline", "Score ratio", "Welch ratio", "95 % interval", "Runs", "p", "p Holm", "Verdict"),
        (False, False, True, True, True, True, True, True, False),
        tuple((of.candidate_label, of.baseline_label, _figure(item.score_ratio), _figure(of.ratio),
               f"{of.interval.low:.3f} to {of.interval.high:.3f}" if of.interval else NOTHING,
               f"{item.candidate_score.runs}, {item.baseline_score.runs}",
               _figure(of.p, ".3g"), _figure(of.p_adjusted, ".3g"), of.verdict)
              for item in found for of in (item.comparison,)))


def _figure(value: float | None, form: str = ".3f", ends: tuple[float, float] | None = None) -> str:
    """Return a figure, with the ends of its interval if there is one; a dash if it is unknown."""
    return NOTHING if value is None else \
        f"{value:{form}}" + (f" ({ends[0]:{form}} to {ends[1]:{form}})" if ends else "")


def print_import(published: Published) -> None:
    """Print one row per cell, the refused files, and the counts."""
    console = stdout(150)
    if published.record.contest is None:
        print_table(_cells(published), console)
    else:
        claims = judge_claims(published)
        print_table(_claims(claims), console)
        console.lines(*_doubts(claims))
    more = len(published.refused) - SHOWN_REFUSALS
    counts = ", ".join(f"{count} {status}" for status, count in count_statuses(published).items())
    console.lines(*(f"refused  {item.source}: {item.reason}" for item in published.refused[:SHOWN_REFUSALS]),
        *([f"refused  {more} more: {published.folder / REFUSED}"] if more > 0 else []),
        f"{len(published.results)} results ({counts}), {len(published.refused)} files refused; "
        f"{published.folder / RECORD}")


def _cells(published: Published) -> TextTable:
    runs = published.by_cell()
    return TextTable(
        "Published results: minutes to target, as scored by their program",
        ("Round", "Benchmark", "Org", "System", "Accelerators", "Batch", "Runs", "Without time", "Minutes",
         "Epochs to it", "Note"), (*[False] * 4, *[True] * 6, False),
        tuple(_row(cell, [item for item in runs[cell.cell_id] if item.status == "ok"])
              for cell in published.record.cells))


def _row(cell: PublishedCell, reached: list[PublishedResult]) -> tuple[str, ...]:
    of, score = cell.factors, cell.score
    work = _spread([item.epochs_to_target for item in reached]) or _spread(
        [item.samples_to_target for item in reached], " samples")
    return (*(of[key] for key in ("round", "benchmark", "org", "system")), of.get("accelerators", NOTHING),
            of.get("batch.global", NOTHING), str(score.runs), str(score.failed), _figure(score.minutes),
            work or NOTHING, score.reason or NOTHING)


def _spread(values: Sequence[float | None], unit: str = "") -> str:
    known = [value for value in values if value is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    return (f"{low:,g}" if low == high else f"{low:,g}-{high:,g}") + unit


def _claims(claims: Claims) -> TextTable:
    """Return a row for each arm."""
    rules = claims.rules
    return TextTable(
        f"Published claims: mean loss at most the target (one-sided t, alpha {rules.alpha:g}), time of the program's "
        f"clock (95 % intervals; the same: within {100 * rules.margin:g} %)",
        ("Record", "Arm", "Runs", "Mean loss", "p", "Mean seconds", "Quality", "Time against the other arm"),
        (False, False, True, True, True, True, False, False), tuple(map(_claim, claims.arms)))


def _claim(item: ArmClaim) -> tuple[str, ...]:
    quality, time = item.quality, item.time
    ratio = f" {_figure(time.ratio, '.4f', time.interval)}" if time.ratio is not None else ""
    return (item.record, item.arm, str(item.runs), _figure(quality.mean, ".5f"), _figure(quality.p, ".2g"),
            _figure(item.seconds, ".3f", item.seconds_interval), quality.verdict, f"{time.verdict}{ratio}")


def _doubts(claims: Claims) -> Iterator[str]:
    """Yield each claim that its logs do not support, with its figures, and what else a reader must know."""
    for item in claims.arms:
        if item.quality.verdict != "supported":
            yield f"{item.quality.verdict}  {item.record}, {item.arm}: {item.quality.because}"
        yield from (f"caution  {item.record}, {item.arm}: {text}" for text in item.time.cautions)
    yield from (f"not given by the logs  {stated.because}" for stated in claims.stated)
    yield from (f"note  {text}" for text in claims.rules.notes)
