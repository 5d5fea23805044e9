"""Printable text and numbers from files of others, and the error that refuses a file."""

from __future__ import annotations

import math
import os
from typing import Any

from repro.core.errors import ReproError

MAX_NAME = 200
"""Most characters of a name or a note."""


class DamagedInput(ReproError):
    """A damaged or malformed file of others; the message is the reason shown to readers."""


def plain(value: Any, limit: int = MAX_NAME) -> str:
    """Return `value` as encodable text: no lone surrogates, at most `limit` characters, `…` marks a cut."""
    text = value if isinstance(value, str) else str(value)
    text = text[: limit + 1].encode("utf-8", "backslashreplace").decode("utf-8")
    return text if len(text) <= limit else text[: limit - 1] + "…"


def file_name(name: str) -> str:
    """Return the name or relative path of a file as text; bytes that are not UTF-8 become escapes."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def number(value: Any) -> float | None:
    """Return `value` as a finite float; None for text, booleans, NaN, infinities and integers above 2^63."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, int) and abs(value) > 1 << 63:
        return None
    found = float(value)
    return found if math.isfinite(found) else None
