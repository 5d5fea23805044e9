"""The findings of an audit as a table for a terminal, failing rules first."""

from __future__ import annotations

from rich.table import Table

from repro.audit.audit import Audit
from repro.cli.console import Console, line, stdout

ORIGINS = {"record": "a run of this harness", "mlperf": "MLPerf results", "dawnbench": "DAWNBench entries",
           "speedrun": "records of a speed-run", "mlflow": "an MLflow experiment"}
COLORS = {"fail": "red", "cannot tell": "yellow", "pass": "green", "not applicable": "dim"}


def print_audit(found: Audit, console: Console | None = None) -> None:
    """Print every rule with its verdict and evidence; colours only on a terminal."""
    console = console or stdout(160)
    console.print(line(f"{found.title}: {ORIGINS[found.origin]}, {found.cells} cells, {found.runs} runs"),
                  soft_wrap=True)
    table = Table(box=None, pad_edge=False, header_style="")
    for name in ("verdict", "rule", "", "title", "evidence"):
        table.add_column(name, overflow="fold", no_wrap=name in ("verdict", "rule", ""))
    for item in found.findings:
        table.add_row(line(item.verdict, style=COLORS[item.verdict]), item.id, "required" if item.required else "",
                      line(item.title), line(item.evidence))
    console.print(table)
    counts = ", ".join(f"{number} {verdict}" for verdict, number in found.counts.items())
    console.print(line(f"{len(found.findings)} rules: {counts}"), soft_wrap=True)
    if found.failed:
        console.print(line(f"required and not met: {', '.join(item.id for item in found.failed)}"), soft_wrap=True)
