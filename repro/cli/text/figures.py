"""Figures of training by cell as a table for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from repro.cli.console import Console, line
from repro.compare.cell_figures import GROUPS

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
            table.add_column(f"{item.title} ({item.unit})" if item.unit else item.title, justify="right",
                             overflow="fold")
        for cell, values in zip(cells, found, strict=True):
            table.add_row(line(cell.label), *(f"{values[item.path]:.4g}" if item.path in values else "-"
                                              for item in columns))
        console.print(table)
    if any(found):
        for text in notes:
            console.print(line(f"figures: {text}"), soft_wrap=True)
