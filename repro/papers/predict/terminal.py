"""A scale model as tables for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repro.cli.console import Console, line, stdout
from repro.cli.text.scores import table_of
from repro.papers.predict import words

if TYPE_CHECKING:
    from repro.papers.predict.prediction import ScaleModel

SHOWN = 15
"""Columns of a terminal; bytes are in the page and the JSON."""


def print_predicted(found: ScaleModel, console: Console | None = None) -> None:
    """Print every line with its rows and assumptions."""
    console = console or stdout(190)
    console.print(line(f"{found.suite}, {found.run} ({found.origin}), {found.scaling} scaling; all figures are "
                       "modelled, except columns called measured"), soft_wrap=True)
    for item in found.lines:
        console.print(line(""))
        console.print(line(item.label, style="bold"), soft_wrap=True)
        console.print(line(words.line_text(item)), soft_wrap=True)
        used = [at for at in range(SHOWN) if at == 0 or any(words.cells(row)[at] for row in item.rows)]
        table = table_of(*((words.HEAD[at], True) for at in used))
        for row in item.rows:
            table.add_row(*(line(words.cells(row)[at]) for at in used))
        console.print(table)
        for text in words.notes(item):
            console.print(line(f"  {text}"), soft_wrap=True)
    console.print(line(""))
    for text in found.assumptions:
        console.print(line(f"assumed: {text}"), soft_wrap=True)
    for text in found.left_out:
        console.print(line(f"left out: {text}"), soft_wrap=True)
    if check := words.check_text(found):
        console.print(line(check, style="bold"), soft_wrap=True)
