"""Scores over workloads as tables for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from repro.cli.console import Console, line, stdout
from repro.compare.ranking.scores import TWICE
from repro.suite.metrics import METRICS

if TYPE_CHECKING:
    from repro.compare.figures import Estimate
    from repro.compare.ranking.score_figures import Scores
    from repro.compare.ranking.score_runs import Scored


def print_scored(scored: Scored, console: Console | None = None) -> None:
    """Print medians, scores and what they rest on."""
    console = console or stdout(200)
    found, scale = scored.found, METRICS[scored.found.metric]
    for name, digest, method in scored.suites:
        console.print(line(f"{name}, digest {digest[:16]}, method {method}: {scale.noun}"), soft_wrap=True)
    console.print(line(f"{len(found.workloads)} workloads, {len(found.contenders)} contenders by "
                       f"{', '.join(found.by)}; ratios to {found.reference}; {' and '.join(found.origins)} on "
                       f"{scored.machine}"), soft_wrap=True)
    console.print(_medians(found, scale.unit))
    console.print(_scores(found))
    for item in found.contenders:
        if item.withheld:
            console.print(line(f"withheld: {item.name}: {item.withheld}"), soft_wrap=True)
    for name, reason in found.left_out:
        console.print(line(f"left out: {name}: {reason}"), soft_wrap=True)
    for text in found.cautions:
        console.print(line(f"caution: {text}"), soft_wrap=True)
    for text in (*found.notes, *scored.notes):
        console.print(line(f"note: {text}"), soft_wrap=True)


def _medians(found: Scores, unit: str) -> Table:
    table = table_of((f"median, {unit}" if unit else "median", False),
                   *((f"{item.name}: {item.target}", True) for item in found.workloads))
    for contender in found.contenders:
        cells = []
        for workload in found.workloads:
            item = found.outcome(contender.name, workload.name)
            figure = "missed" if item.median is None else f"{item.median:.4g}"
            cells.append(line(f"{figure} ({item.reached}/{item.n})",
                              style="bold" if item.median is not None and item.median == workload.best else ""))
        table.add_row(line(contender.name), *cells)
    return table


def _scores(found: Scores) -> Table:
    shares = sorted({TWICE, found.tau_max} & set(found.taus))
    table = table_of(("contender", False), (f"score to {found.tau_max:g} x", True), ("95 % band", True),
                   ("best on", True), *((f"within {tau:g} x", True) for tau in shares), ("solved", True),
                   (f"mean ratio to {found.reference}", True), ("95 % interval", True))
    for item in found.contenders:
        table.add_row(
            line(item.name), f"{item.score.value:.3f}", _ends(item.score), _share(item.best_share),
            *(_share(found.within(item, tau)) for tau in shares), f"{item.solved}/{len(found.workloads)}",
            "withheld" if item.mean_ratio is None else f"{item.mean_ratio.value:.3f}", _ends(item.mean_ratio))
    return table


def _ends(found: Estimate | None) -> str:
    if found is None or found.interval is None:
        return "-"
    return f"{found.interval.low:.3f} to {found.interval.high:.3f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}".replace("%", " %")


def table_of(*columns: tuple[str, bool]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="")
    for name, right in columns:
        table.add_column(line(name), justify="right" if right else "left", overflow="fold")
    return table
