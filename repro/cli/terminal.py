"""Plain text on the terminal: what records and files contain cannot steer it."""

from __future__ import annotations

import click

from repro.core.errors import visible

LINES = "\n\t"


def say(text: object, err: bool = False) -> None:
    """Print a text on stdout or stderr; control, format and direction characters in it become escapes."""
    click.echo(visible(str(text), LINES), err=err)
