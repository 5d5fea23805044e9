"""The record as JSON lines: one object per row of every table, in one file that a script reads line by line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from repro.core.files import write_text
from repro.record.folder.store import Record
from repro.reporting import Reporter
from repro.tables.tables import Table, tables
from repro.tables.values import finite

SCHEMA = 1


class JsonLines(Reporter):
    """`report.jsonl`: every line has `table` and the columns of the row; the first line describes the record."""

    title: ClassVar[str] = "JSON lines, one object per row of every table, in one file"

    def write(self, record: Record, out: Path) -> list[str]:
        """Write `report.jsonl` into `out`.

        Raises:
            OutputError: `out` cannot be written.
        """
        path = out / "report.jsonl"
        write_text(path, "".join(lines(tables(record))))
        return [str(path)]


def lines(found: Sequence[Table]) -> Iterator[str]:
    """Yield ASCII lines, independent of encodings; values that are not finite become null."""
    for table in found:
        for row in table.rows:
            data = {"schema": SCHEMA, "table": table.name} | {name: finite(value) for name, value in row.items()}
            yield json.dumps(data, allow_nan=False) + "\n"
