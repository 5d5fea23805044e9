"""The findings of an audit as a table for a terminal, failing rules first."""

from __future__ import annotations

from repro.audit.audit import Audit
from repro.cli.console import Console, line, stdout
from repro.cli.text.table import print_table
from repro.tables.layout import TextTable

ORIGINS = {"record": "a run of this harness", "mlperf": "MLPerf results", "dawnbench": "DAWNBench entries",
           "speedrun": "records of a speed-run", "mlflow": "an MLflow experiment"}


def print_audit(found: Audit, console: Console | None = None) -> None:
    """Print every rule with its verdict and evidence; colours only on a terminal."""
    console = console or stdout(160)
    heads = ("Verdict", "Rule", "", "Title", "Evidence")
    print_table(TextTable(
        f"{found.title}: {ORIGINS[found.origin]}, {found.cells} cells, {found.runs} runs", heads, (False,) * len(heads),
        tuple((item.verdict, item.id, "required" if item.required else "", item.title, item.evidence)
              for item in found.findings)), console)
    counts = ", ".join(f"{number} {verdict}" for verdict, number in found.counts.items())
    console.print(line(f"{len(found.findings)} rules: {counts}"), soft_wrap=True)
    if found.failed:
        console.print(line(f"required and not met: {', '.join(item.id for item in found.failed)}"), soft_wrap=True)
