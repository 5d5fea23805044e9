"""The record as files of its tables: CSV for a spreadsheet, Parquet with types, JSON lines for a script."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from repro.api.frames import STEPS, step_frame
from repro.core.files import write_bytes
from repro.record.folder.store import Record
from repro.reporting import Reporter
from repro.tables.columns import ColumnFacts, column_facts
from repro.tables.tables import Table, tables
from repro.tables.values import Value, finite

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20", "|", "%")
"""First characters that make spreadsheets read text as a formula (OWASP, "CSV Injection"; also full-width forms)."""
SCHEMA = 1


class CsvFiles(Reporter):
    """One file per table in `csv/`: UTF-8, comma, header line, empty if unknown, numbers with all digits."""

    title: ClassVar[str] = "CSV files, one per table: cells, comparisons, pairs, trials, evaluations, ..."

    def write(self, record: Record, out: Path) -> list[str]:
        """Write `csv/<table>.csv` into `out`."""
        return write_csv(tables(record), out)


class ParquetFiles(Reporter):
    """One file per table in `parquet/`, and the steps; whose metadata hold suite, digest, method and origin."""

    title: ClassVar[str] = "Parquet files, one per table and one of all steps, with types"

    def write(self, record: Record, out: Path) -> list[str]:
        """Write `parquet/<table>.parquet` into `out`."""
        import pyarrow

        found, steps = tables(record), step_frame(record)
        about = {key: str(found[0].rows[0][key]) for key in ("suite", "suite_digest", "method", "origin", "started_ms")}
        written = write_parquet(found, about, out)
        if steps.empty:
            return written
        place = out / "parquet" / f"{STEPS}.parquet"
        columns = {name: (column_facts(STEPS, name), pyarrow.Array.from_pandas(steps[name])) for name in steps.columns}
        write_bytes(place, parquet_bytes(columns, {"title": "One row per step of a trial", **about}))
        return [*written, str(place)]


class JsonLines(Reporter):
    """`report.jsonl`: every line has `table` and the columns of the row; the first line describes the record."""

    title: ClassVar[str] = "JSON lines, one object per row of every table, in one file"

    def write(self, record: Record, out: Path) -> list[str]:
        """Write `report.jsonl` into `out`."""
        return write_lines(tables(record), out / "report.jsonl")


def write_csv(found: Sequence[Table], out: Path) -> list[str]:
    """Write `csv/<table>.csv` for each table, and return the paths."""
    return _write_each(found, out, "csv", lambda table: csv_text(table).encode())


def write_parquet(found: Sequence[Table], about: Mapping[str, str], out: Path) -> list[str]:
    """Write `parquet/<table>.parquet` for each table with `about` as metadata, and return the paths."""
    import pyarrow

    kinds = {bool: pyarrow.bool_(), int: pyarrow.int64(), float: pyarrow.float64(), str: pyarrow.string()}

    def content(table: Table) -> bytes:
        columns = {name: (facts, pyarrow.array([None if row.get(name) is None else facts.kind(row[name])
                                                for row in table.rows], kinds[facts.kind]))
                   for name, facts in table.described.items()}
        return parquet_bytes(columns, {"title": table.title, **about})

    return _write_each(found, out, "parquet", content)


def write_lines(found: Sequence[Table], path: Path) -> list[str]:
    """Write all tables as JSON lines, and return the path."""
    write_bytes(path, "".join(lines(found)).encode())
    return [str(path)]


def _write_each(found: Sequence[Table], out: Path, kind: str, content: Callable[[Table], bytes]) -> list[str]:
    tables_at = {out / kind / f"{table.name}.{kind}": table for table in found}
    for path, table in tables_at.items():
        write_bytes(path, content(table))
    return [str(path) for path in tables_at]


def csv_text(table: Table) -> str:
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


def lines(found: Sequence[Table]) -> Iterator[str]:
    """Yield ASCII lines, independent of encodings; values that are not finite become null."""
    for table in found:
        for row in table.rows:
            data = {"schema": SCHEMA, "table": table.name} | {name: finite(value) for name, value in row.items()}
            yield json.dumps(data, allow_nan=False) + "\n"


def parquet_bytes(columns: Mapping[str, tuple[ColumnFacts, Any]], about: Mapping[str, str]) -> bytes:
    """Return the bytes of the file: the same for the same arrays and library."""
    import pyarrow
    import pyarrow.parquet

    schema = pyarrow.schema([pyarrow.field(name, values.type, metadata={"unit": facts.unit, "words": facts.words})
                             for name, (facts, values) in columns.items()], metadata=about)
    stream = io.BytesIO()
    table = pyarrow.Table.from_arrays([values for _, values in columns.values()], schema=schema)
    pyarrow.parquet.write_table(table, stream, compression="zstd")
    return stream.getvalue()
