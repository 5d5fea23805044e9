"""Scores over workloads as tables for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repro.cli.console import Console, line, stdout
from repro.cli.text.table import print_table
from repro.suite.metrics import METRICS
from repro.tables.scores import score_table, score_time_table

if TYPE_CHECKING:
    from repro.compare.ranking.score_runs import Scored


def print_scored(scored: Scored, console: Console | None = None) -> None:
    """Print medians, scores and what they rest on."""
    console = console or stdout(200)
    found = scored.found
    for name, digest, method in scored.suites:
        console.print(line(f"{name}, digest {digest[:16]}, method {method}: {METRICS[found.metric].noun}"),
                      soft_wrap=True)
    console.print(line(f"{len(found.workloads)} workloads, {len(found.contenders)} contenders by "
                       f"{', '.join(found.by)}; ratios to {found.reference}; {' and '.join(found.origins)} on "
                       f"{scored.machine}"), soft_wrap=True)
    print_table(score_time_table(found, digits=4), console)
    print_table(score_table(found, digits=4).without(("Withheld",)), console)
    for text in (*(f"withheld: {item.name}: {item.withheld}" for item in found.contenders if item.withheld),
                 *(f"left out: {name}: {reason}" for name, reason in found.left_out),
                 *(f"caution: {text}" for text in found.cautions),
                 *(f"note: {text}" for text in (*found.notes, *scored.notes))):
        console.print(line(text), soft_wrap=True)
