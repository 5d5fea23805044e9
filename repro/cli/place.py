"""Paths on the command line, checked before any command uses them."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import click

from repro.core.errors import UsageError

LONGEST_PART = 255
"""Bytes of one name; file systems accept no more."""
LONGEST = 4095
"""Bytes of a path."""


class PlaceParam(click.Path):
    """The path of a file or folder that exists or will be made: no pipe, socket or device, which would block."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        check_place(value)
        return super().convert(value, param, ctx)


def check_place(value: str | os.PathLike[str]) -> None:
    """Check that a path can be one.

    Raises:
        UsageError: it is empty, too long, has characters that no path has, or names neither file nor folder.
    """
    text = os.fspath(value)
    shown = text if len(text) <= 80 else f"{text[:40]}...{text[-20:]}"
    try:
        raw = os.fsencode(text)
    except UnicodeEncodeError:
        raise UsageError(f"{shown}: is not a path: it has a character that no file system can write") from None
    if not raw or b"\0" in raw:
        raise UsageError("a path is empty" if not raw else f"{shown}: is not a path: it has a NUL character")
    if (longest := max(map(len, raw.split(b"/")))) > LONGEST_PART or len(raw) > LONGEST:
        what = f"has a name of {longest:,} bytes; at most {LONGEST_PART}" if longest > LONGEST_PART else (
            f"has {len(raw):,} bytes; at most {LONGEST}")
        raise UsageError(f"{shown}: {what} are possible")
    try:
        mode = Path(text).stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise UsageError(f"{shown}: cannot be used: {error.strerror}") from None
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise UsageError(f"{shown}: is a pipe, socket or device, neither a file nor a folder")
