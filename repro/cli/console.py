"""Tables and colours on the terminal: what records and files contain cannot steer it."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from repro.cli.terminal import LINES
from repro.core.errors import visible


class Console(rich.console.Console):
    """Rich's console, whose own colours reach the terminal and whose texts' control characters do not."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text, LINES), segment.style)


def line(text: str, style: str = "") -> Text:
    """Return one line of a text: its line breaks become escapes too, so that it cannot pass for several."""
    return Text(visible(text), style)


def stdout(width: int) -> Console:
    """Return stdout, as wide as the terminal or, elsewhere, `width` characters: one line a row."""
    on_terminal = sys.stdout is not None and sys.stdout.isatty()  # None: it was closed before the start
    return Console(highlight=False, width=None if on_terminal else width)


def table_of(*columns: tuple[str, bool]) -> Table:
    """Return an empty table without lines; of each column its head, and whether it is right-aligned."""
    table = Table(box=None, pad_edge=False, header_style="")
    for name, right in columns:
        table.add_column(line(name), justify="right" if right else "left", overflow="fold")
    return table
