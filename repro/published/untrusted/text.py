"""Why a file was not taken, and plain text from foreign bytes."""

from __future__ import annotations

import math
import os
import unicodedata
from typing import Any

from repro.core.errors import ReproError

MAX_NAME = 200
"""Characters of a name or a note that are kept."""


class Damaged(ReproError):
    """A file of others that cannot be trusted to mean what it says; the message is the reason a reader sees."""


def plain(value: Any, limit: int = MAX_NAME) -> str:
    """`value` as text that every encoder takes: no lone surrogates, at most `limit` characters, a cut shown as `…`."""
    text = value if isinstance(value, str) else str(value)
    text = text[: limit + 1].encode("utf-8", "backslashreplace").decode("utf-8")
    return text if len(text) <= limit else text[: limit - 1] + "…"


def file_name(name: str) -> str:
    """A file's name or relative path as text; bytes that are no UTF-8 show as escapes."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def number(value: Any) -> float | None:
    """`value` as a finite float; None when it is none (text, truth values, NaN, infinities, beyond 2^63)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, int) and abs(value) > 1 << 63:
        return None
    found = float(value)
    return found if math.isfinite(found) else None


def visible(text: str) -> str:
    """Text for a reader: control, format and direction characters of foreign names become `\\uXXXX`."""
    return "".join(sign if unicodedata.category(sign)[0] != "C" else f"\\u{ord(sign):04x}" for sign in text)
