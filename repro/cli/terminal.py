"""Text, tables and colours on the terminal: what records and files contain cannot steer it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

import click
import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from repro.core.errors import visible

LINES = "\n\t"


def say(text: object, err: bool = False) -> None:
    """Print a text on stdout or stderr; control, format and direction characters in it become escapes."""
    click.echo(visible(str(text), LINES), err=err)


def command(arguments: str) -> str:
    """Return `repro ARGUMENTS`; with the path of the script if it is not on the PATH (no activated environment)."""
    script = Path(sys.executable).with_name("repro")
    if shutil.which("repro") or not script.exists():
        return f"repro {arguments}"
    return f"{os.path.relpath(script)} {arguments}"


class Console(rich.console.Console):
    """Rich's console, whose own colours reach the terminal and whose texts' control characters do not."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text, LINES), segment.style)

    def lines(self, *texts: str) -> None:
        """Print each text as one line, which the terminal wraps."""
        for text in texts:
            self.print(line(text), soft_wrap=True)


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
