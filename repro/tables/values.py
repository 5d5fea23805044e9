"""Values of tables: exact JSON scalars, text that is safe everywhere, intervals as columns."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from repro.compare import Bounds, Estimate
from repro.record.folder.store import Record
from repro.suite.planning.cell import Cell
from repro.tables.text import without_paths

Value = str | int | float | bool | None
Row = dict[str, Value]
UNSEEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff"
                    "\ud800-\udfff]")
"""Control characters, marks that change the direction of text, lone surrogates."""


def origins_of(record: Record, cells: Sequence[Cell]) -> tuple[str, ...]:
    """Return the origins of the figures of several cells of the record, each once."""
    return tuple(dict.fromkeys(record.origin_of(cell) for cell in cells)) or ("measured",)


def plain(text: str) -> str:
    """Return text that is safe everywhere: no folder of this machine, no hidden or direction character.

    Line ends become LF: csv writes a lone carriage return without quotes, and readers then break the row there.
    """
    lines = without_paths(text).replace("\r\n", "\n").replace("\r", "\n")
    return UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", lines)


def bounds(name: str, found: Bounds | None) -> Row:
    """Return `name_low`, `name_high`, `name_level`; all None if there is no interval."""
    return {f"{name}_low": found.low if found else None, f"{name}_high": found.high if found else None,
            f"{name}_level": found.level if found else None}


def estimate(name: str, found: Estimate | None) -> Row:
    """Return the value and its interval; all None if there is none."""
    return {name: found.value if found else None} | bounds(name, found.interval if found else None)


def finite(value: Value) -> Value:
    """Return None for numbers that are not finite, which JSON cannot hold."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def as_number(value: Value) -> float | None:
    """Return the value of a column of numbers; None: unknown."""
    return None if value is None else float(value)
