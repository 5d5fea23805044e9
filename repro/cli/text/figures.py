"""Figures of training by cell as a table for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from repro.cli.console import Console, line
from repro.compare.cell_figures import GROUPS, Figure

from .amounts import seconds_text

if TYPE_CHECKING:
    from repro.compare import Summary

SHOWN = ("Speed", "Memory", "Input", "Energy")
"""Groups that the terminal shows; JSON and the page have all."""


def print_figures(
    cells: Sequence[Summary], found: Sequence[Mapping[str, float]], notes: Iterable[str], console: Console
) -> None:
    """Print a table of each group that a cell has figures of, and what a reader must know of them.

    Args:
        found: of each cell.
    """
    for title in SHOWN:
        columns = [item for item in GROUPS[title] if any(item.path in values for values in found)]
        if not columns:
            continue
        table = Table(box=None, pad_edge=False, header_style="", title=f"{title}: medians of training, not tested",
                      title_justify="left", title_style="")
        table.add_column("cell", overflow="fold")
        for item in columns:
            table.add_column(item.title if item.unit in ("", "s") else f"{item.title} ({item.unit})", justify="right",
                             overflow="fold")  # times carry their unit, which depends on their size
        for cell, values in zip(cells, found, strict=True):
            table.add_row(line(cell.label), *(_figure(item, values.get(item.path)) for item in columns))
        console.print(table)
    if any(found):
        for text in notes:
            console.print(line(f"figures: {text}"), soft_wrap=True)


def _figure(item: Figure, value: float | None) -> str:
    if value is None:
        return "-"
    return seconds_text(value) if item.unit == "s" else f"{value:.4g}"
