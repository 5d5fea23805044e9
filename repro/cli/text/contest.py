"""The claims of a contest as a table for a terminal: those of a run's cells, and those of published records."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from repro.cli.console import Console, line
from repro.compare.figures import Claim
from repro.published.speedrun.claims import ArmClaim, Claims


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


def print_claims(claims: Claims, console: Console) -> None:
    """Print a row for each arm, then each claim that its logs do not support, with its figures."""
    rules = claims.rules
    table = Table(title=f"published claims: mean loss at most the target (one-sided t, alpha {rules.alpha:g}), time of "
                  f"the program's clock (95 % intervals; the same: within {100 * rules.margin:g} %)",
                  title_justify="left")
    for name in ("record", "arm"):
        table.add_column(name, overflow="fold")
    for name in ("runs", "mean loss", "p", "mean seconds"):
        table.add_column(name, justify="right")
    for name in ("quality", "time against the other arm"):
        table.add_column(name, overflow="fold")
    for item in claims.arms:
        table.add_row(*(line(text) for text in _row(item)))
    console.print(table)
    for item in claims.arms:
        if item.quality.verdict != "supported":
            console.print(line(f"{item.quality.verdict}  {item.record}, {item.arm}: {item.quality.because}"))
        for text in item.time.cautions:
            console.print(line(f"caution  {item.record}, {item.arm}: {text}"))
    for stated in claims.stated:
        console.print(line(f"not given by the logs  {stated.because}"))
    for text in rules.notes:
        console.print(line(f"note  {text}"))


def _row(item: ArmClaim) -> tuple[str, ...]:
    quality, time = item.quality, item.time
    spread = item.seconds_interval
    seconds = "" if item.seconds is None else f"{item.seconds:.3f}"
    ratio = "" if time.ratio is None else f" {time.ratio:.4f}"
    bounds = "" if time.interval is None else f" ({time.interval[0]:.4f} to {time.interval[1]:.4f})"
    return (
        item.record, item.arm, str(item.runs), "" if quality.mean is None else f"{quality.mean:.5f}",
        "" if quality.p is None else f"{quality.p:.2g}",
        seconds + (f" ({spread[0]:.3f} to {spread[1]:.3f})" if spread else ""), quality.verdict,
        f"{time.verdict}{ratio}{bounds}",
    )
