"""Reader of the file of metrics that Lightning's CSVLogger writes.

Format: `_ExperimentWriter` in src/lightning/fabric/loggers/csv_logs.py (lightning 2.6): a header, then rows in order;
a metric that a row does not have is empty. A new metric rewrites the whole file with a longer header, its rows kept.
`step` counts from 0. The logger writes after `flush_logs_every_n_steps` (100) records, so that an evaluation is seen
later than it happened, never earlier.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path

from repro.core import door
from repro.program import stated
from repro.program.observation import Observation, OutputProblem
from repro.program.order import Order

STEP = "step"
LARGEST = 64 << 20
"""Most bytes of a file of metrics."""


class CsvReader:
    """Follows a file of metrics. Rows with the quality are evaluations, the others progress."""

    def __init__(self, path: Path, metric: str) -> None:
        """Args:
            metric: the column of the quality.
        """
        self._path, self._metric = path, metric
        self._order = Order()
        self._seen = b""
        self._rows = 0
        self._polls = 0

    def poll(self, arrived_ns: int) -> list[Observation]:
        """Return what was written since the last call; nothing while there is no file.

        Raises:
            OutputProblem: the file has no column `step`, is too large or no UTF-8, a number is none, or as
                `Order.accept`.
        """
        self._polls += 1
        try:
            if self._path.stat().st_size > LARGEST:
                raise OutputProblem(f"{self._path.name} is larger than {LARGEST >> 20} MiB")
            with door.open_plain(self._path) as stream:
                data: bytes = stream.read()
        except FileNotFoundError:
            return []
        data = data[:data.rfind(b"\n") + 1]  # the rest is still being written
        if data == self._seen:
            return []
        self._seen = data
        try:
            rows = list(csv.DictReader(io.StringIO(data.decode(), newline="")))
        except (UnicodeDecodeError, csv.Error) as reason:
            raise OutputProblem(f"{self._path.name} is no table of metrics: {reason}") from None
        new, self._rows = rows[self._rows:], max(self._rows, len(rows))
        return [self._observation(row, arrived_ns) for row in new]

    def _observation(self, row: dict[str, str], arrived_ns: int) -> Observation:
        source = ",".join(str(cell) for cell in row.values())
        if not row.get(STEP):
            raise OutputProblem(f"{self._path.name} has a row without `{STEP}`: {source}")
        value = row.get(self._metric)
        return self._order.accept(Observation(
            "evaluation" if value else "step", arrived_ns, self._polls,
            step=stated.count(row[STEP], STEP, source) + 1,
            value=stated.quality(value, source) if value else None,
        ), source)
