"""The findings of an audit as a table for a terminal, failing rules first."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table
from rich.text import Text

from repro.audit.audit import Audit
from repro.published.untrusted.text import visible

ORIGINS = {"record": "a run of this harness", "mlperf": "MLPerf results", "dawnbench": "DAWNBench entries",
           "mlflow": "an MLflow experiment"}
COLORS = {"fail": "red", "cannot tell": "yellow", "pass": "green", "not applicable": "dim"}


def print_audit(found: Audit, console: Console | None = None) -> None:
    """Print every rule with its verdict and evidence; colours only on a terminal."""
    console = console or Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    console.print(Text(f"{visible(found.title)}: {ORIGINS[found.origin]}, {found.cells} cells, {found.runs} runs"),
                  soft_wrap=True)
    table = Table(box=None, pad_edge=False, header_style="")
    for name in ("verdict", "rule", "", "title", "evidence"):
        table.add_column(name, overflow="fold", no_wrap=name in ("verdict", "rule", ""))
    for item in found.findings:
        table.add_row(Text(item.verdict, style=COLORS[item.verdict]), item.id, "required" if item.required else "",
                      Text(item.title), Text(visible(item.evidence)))
    console.print(table)
    counts = ", ".join(f"{number} {verdict}" for verdict, number in found.counts.items())
    console.print(Text(f"{len(found.findings)} rules: {counts}"), soft_wrap=True)
    if found.failed:
        console.print(Text(f"required and not met: {', '.join(item.id for item in found.failed)}"), soft_wrap=True)
