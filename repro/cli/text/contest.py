"""The claims of a contest as a table for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from repro.cli.console import Console, line
from repro.compare.figures import Claim


def print_quality(claims: Sequence[Claim], console: Console) -> None:
    """Print a row for each cell of a contest, then the reason of each claim; nothing without claims."""
    if not claims:
        return
    table = Table(title=f"claim: {claims[0].statement}", title_justify="left", box=None, pad_edge=False,
                  header_style="", title_style="")
    table.add_column("cell", overflow="fold")
    for name in ("runs", "mean", "95 % interval", "sd", "p, one-sided"):
        table.add_column(name, justify="right")
    table.add_column("quality", overflow="fold")
    for item in claims:
        limits = item.interval
        table.add_row(line(item.label), f"{item.n}/{item.declared}", _digits(item.mean),
                      f"{limits.low:.5f} to {limits.high:.5f}" if limits else "-", _digits(item.deviation),
                      "-" if item.p is None else f"{item.p:.3g}", item.verdict)
    console.print(table)
    for text in quality_lines(claims):
        console.print(line(text), soft_wrap=True)


def quality_lines(claims: Sequence[Claim]) -> list[str]:
    """Return a line for each claim with its figures, and its cautions."""
    return [text for item in claims
            for text in (f"quality of {item.sentence}", *(f"caution: {item.label}: {note}" for note in item.cautions))]


def _digits(value: float | None) -> str:
    return "-" if value is None else f"{value:.5f}"
