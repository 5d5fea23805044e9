"""The record as Parquet files, one per table, with types: for pandas, DuckDB, Spark and others."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from repro.core.files import write_bytes
from repro.record.folder.store import Record
from repro.reporting import Reporter
from repro.tables.tables import Table, tables


class ParquetFiles(Reporter):
    """One file per table in `parquet/`; the metadata of each file holds suite, digest, method and origin."""

    title: ClassVar[str] = "Parquet files, one per table, with types"

    def write(self, record: Record, out: Path) -> list[str]:
        """Write `parquet/<table>.parquet` into `out`.

        Raises:
            OutputError: `out` cannot be written.
        """
        found = tables(record)
        about = {key: str(found[0].rows[0][key]) for key in ("suite", "suite_digest", "method", "origin", "started_ms")}
        return write_tables(found, about, out)


def write_tables(found: Sequence[Table], about: dict[str, str], out: Path) -> list[str]:
    """Write one file for each table, and return the paths."""
    paths = []
    for table in found:
        path = out / "parquet" / f"{table.name}.parquet"
        write_bytes(path, content(table, about))
        paths.append(str(path))
    return paths


def content(table: Table, about: dict[str, str]) -> bytes:
    """Return the bytes of the file: the same for the same table and library."""
    import pyarrow
    import pyarrow.parquet

    kinds = {bool: pyarrow.bool_(), int: pyarrow.int64(), float: pyarrow.float64(), str: pyarrow.string()}
    types = table.types()
    schema = pyarrow.schema([pyarrow.field(name, kinds[kind]) for name, kind in types.items()],
                            metadata={"title": table.title, **about})
    columns = [pyarrow.array([_as(row.get(name), kind) for row in table.rows], kinds[kind])
               for name, kind in types.items()]
    stream = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_arrays(columns, schema=schema), stream, compression="zstd")
    return stream.getvalue()


def _as(value: Any, kind: type) -> Any:
    return None if value is None else kind(value)
