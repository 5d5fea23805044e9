"""The record as CSV files, one per table, for a spreadsheet or pandas: exact values, safe to open."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from repro.core.files import write_text
from repro.record.folder.store import Record
from repro.reporting import Reporter
from repro.tables.tables import Table, tables
from repro.tables.values import Value

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20", "|", "%")
"""First characters that make spreadsheets read text as a formula (OWASP, "CSV Injection"; also full-width forms)."""


class CsvFiles(Reporter):
    """One file per table in `csv/`: UTF-8, comma, header line, empty if unknown, numbers with all digits."""

    title: ClassVar[str] = "CSV files, one per table: cells, comparisons, pairs, trials, evaluations, ..."

    def write(self, record: Record, out: Path) -> list[str]:
        """Write `csv/<table>.csv` into `out`.

        Raises:
            OutputError: `out` cannot be written.
        """
        return write_tables(tables(record), out)


def write_tables(found: Sequence[Table], out: Path) -> list[str]:
    """Write one file for each table, and return the paths."""
    paths = []
    for table in found:
        path = out / "csv" / f"{table.name}.csv"
        write_text(path, text(table))
        paths.append(str(path))
    return paths


def text(table: Table) -> str:
    """Format a table by RFC 4180, but with LF line ends, so that the bytes do not depend on the system."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([field(name) for name in table.columns])
    writer.writerows([field(row.get(name)) for name in table.columns] for row in table.rows)
    return stream.getvalue()


def field(value: Value) -> str:
    """Format a value. Text that a spreadsheet would run gets a leading apostrophe."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"'{value}" if value.lstrip(" ").startswith(FORMULA) else value
    return repr(value)
