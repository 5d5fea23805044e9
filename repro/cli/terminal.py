"""Plain text on the terminal: what records and files contain cannot steer it."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import click

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
