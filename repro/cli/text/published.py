"""Comparisons of published results as tables and sentences for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from repro.cli.console import Console, line, stdout
from repro.compare import METRICS
from repro.published.comparison.compare import PublishedCompared
from repro.published.comparison.contrast import Entry, PublishedContrast


def print_published(found: PublishedCompared, console: Console | None = None) -> None:
    """Print the scores, the ratios, the verdicts and their reasons."""
    console = console or stdout(200)
    console.print(line(f"published results: {', '.join(found.folders)}; {METRICS[found.metric].noun}"), soft_wrap=True)
    console.print(_scores(found.entries))
    console.print(_ratios(found.contrasts))
    for number, item in enumerate(found.contrasts, 1):
        settles = f"; {item.comparison.settles}" if item.comparison.settles else ""
        console.print(line(f"{number}. {item.comparison.verdict}: {item.comparison.because}{settles}"), soft_wrap=True)
        if item.score_because and item.score_because not in item.comparison.because:
            console.print(line(f"   no ratio of scores: {item.score_because}"), soft_wrap=True)
    for text, where in _cautions(found.contrasts):
        console.print(line(f"caution: {text}{where}"), soft_wrap=True)
    for text in found.failures:
        console.print(line(f"failed: {text}"), soft_wrap=True)


def _scores(cells: Sequence[Entry]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="")
    for name, right in (("cell", False), ("division", False), ("accelerators", True), ("runs", True),
                        ("without time", True), ("score, min", True), ("note", False)):
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for item in cells:
        score = item.cell.score
        table.add_row(*(line(text) for text in (
            item.label, item.factor("division") or "-", item.factor("accelerators") or "-", str(score.runs),
            str(score.failed), "-" if score.minutes is None else f"{score.minutes:.3f}", score.reason)))
    return table


def _ratios(found: Sequence[PublishedContrast]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="")
    for name, right in (("", True), ("candidate", False), ("baseline", False), ("score ratio", True),
                        ("Welch ratio", True), ("95 % interval", True), ("runs", True), ("p", True), ("p Holm", True),
                        ("verdict", False)):
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for number, item in enumerate(found, 1):
        of = item.comparison
        table.add_row(*(line(text) for text in (
            str(number), of.candidate_label, of.baseline_label, _figure(item.score_ratio), _figure(of.ratio),
            f"{of.interval.low:.3f} to {of.interval.high:.3f}" if of.interval else "-",
            f"{item.candidate_score.runs}, {item.baseline_score.runs}",
            "-" if of.p is None else f"{of.p:.3g}", "-" if of.p_adjusted is None else f"{of.p_adjusted:.3g}",
            of.verdict)))
    return table


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _cautions(found: Sequence[PublishedContrast]) -> list[tuple[str, str]]:
    """Return (caution, numbers of the contrasts it applies to unless it applies to all)."""
    where: dict[str, list[int]] = {}
    for number, item in enumerate(found, 1):
        for text in item.comparison.cautions:
            where.setdefault(text, []).append(number)
    return [(text, "" if len(numbers) == len(found) else f" ({', '.join(map(str, numbers))})")
            for text, numbers in where.items()]
