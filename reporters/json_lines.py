"""The record as JSON lines: one object a row of every table, in one file that a script reads line by line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from repro.seams import Reporter
from repro.store import Record, write_text

from .tables import finite, tables

SCHEMA = 1


class JsonLines(Reporter):
    """`report.jsonl`: every line has `table` and the row's columns; the first one says what record it is."""

    title: ClassVar[str] = "JSON lines, one object a row of every table, in one file"

    def write(self, record: Record, out: Path) -> list[str]:
        """Write `report.jsonl` into `out`.

        Raises:
            OutputError: `out` cannot be written.
        """
        path = out / "report.jsonl"
        write_text(path, "".join(lines(record)))
        return [str(path)]


def lines(record: Record) -> Iterator[str]:
    """ASCII only, so that no reader can mistake the encoding; what is not finite is null."""
    for table in tables(record):
        for row in table.rows:
            data = {"schema": SCHEMA, "table": table.name} | {name: finite(value) for name, value in row.items()}
            yield json.dumps(data, allow_nan=False) + "\n"
