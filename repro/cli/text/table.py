"""A table of the table layer on a terminal."""

from __future__ import annotations

from repro.cli.console import Console, line, table_of
from repro.tables.layout import TextTable, compact

COLORS = {"faster": "green", "higher": "green", "slower": "red", "lower": "red", "same": "cyan",
          "fail": "red", "cannot tell": "yellow", "pass": "green", "not applicable": "dim"}
"""Words of a cell that have a colour: verdicts."""


def print_table(table: TextTable, console: Console, numbered: bool = False) -> None:
    """Print a table under its title, in which stands what every row repeats; nothing without rows.

    Args:
        numbered: the first column counts the rows.
    """
    if not table.rows:
        return
    short, said = compact(table)
    title = f"{short.title}. {said}" if short.title and said else short.title or said
    if title:
        console.print(line(title), soft_wrap=True)
    shown = table_of(*(("", True),) * numbered, *zip(short.headers, short.numeric, strict=True))
    for number, row in enumerate(short.rows, 1):
        shown.add_row(*([str(number)] if numbered else []), *(line(text, style=COLORS.get(text, "")) for text in row))
    console.print(shown)
