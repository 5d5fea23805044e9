"""Readers of files that programs write: a table of metrics, TensorBoard's event files."""

from __future__ import annotations

import csv
import io
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from repro.core import door
from repro.core.errors import UsageError, visible
from repro.program.observation import Observation, Order, OutputProblem, Reader, quoted
from repro.program.output_readers import read_count, read_quality

STEP = "step"
LARGEST = 64 << 20
"""Most bytes of a file of metrics."""
FILES = "events.out.tfevents.*"
NO_TENSORBOARD = (
    "reading TensorBoard's event files takes the package tensorboard: pip install 'repro-harness[tensorboard]'")


class CsvReader(Reader):
    """Follows the file of metrics that Lightning's CSVLogger writes. Rows with the quality are evaluations, the others
    progress.

    Format: `_ExperimentWriter` in src/lightning/fabric/loggers/csv_logs.py (lightning 2.6): a header, then rows in
    order; a metric that a row does not have is empty. A new metric rewrites the whole file with a longer header, its
    rows kept. `step` counts from 0. The logger writes after `flush_logs_every_n_steps` (100) records, so that an
    evaluation is seen later than it happened, never earlier.
    """

    def __init__(self, path: Path, metric: str) -> None:
        self._path, self._metric = path, metric
        self._order = Order()
        self._seen = b""
        self._rows = 0
        self._polls = 0
        self._looks = (0, 0)
        """Monotonic nanoseconds of the look before this one, and of this one."""

    def poll(self, arrived_ns: int) -> list[Observation]:
        """Return what was written since the last call; nothing while there is no file.

        Raises:
            OutputProblem: the file has no column `step`, is too large or no UTF-8, a number is none, or as
                `Order.accept`.
        """
        self._polls += 1
        self._looks = self._looks[1], arrived_ns
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
            step=read_count(row[STEP], STEP, source) + 1,
            value=read_quality(value, source) if value else None, since_ns=self._looks[0],
        ), source)


class TensorboardReader(Reader):
    """Follows the event files of one folder. The scalars of one tag are the evaluations; other tags may count other
    things than steps and state nothing.

    Each event has the wall clock of its writer, so that an evaluation has a time though writers hold events back
    (torch's `SummaryWriter` for 120 s). One writer is followed: with several nothing tells whose values count.
    """

    def __init__(self, folder: Path, tag: str, axis: Literal["step", "samples", "epoch"] = "step") -> None:
        """Args:
            folder: searched for event files, not below.
            tag: tag of the quality.
            axis: what the program passes as the step of this tag.

        Raises:
            UsageError: the package tensorboard is not installed.
        """
        try:
            from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
        except ImportError:
            raise UsageError(NO_TENSORBOARD) from None
        self._loader_of: Callable[[str], Any] = EventFileLoader
        self._folder, self._tag, self._axis = folder, tag, axis
        self._loader: Any = None
        self._order = Order()
        self._polls = 0
        self._looks = (0, 0)
        """Monotonic nanoseconds of the look before this one, and of this one."""

    def poll(self, arrived_ns: int) -> list[Observation]:
        """Return the evaluations written since the last call; nothing while there is no event file.

        Raises:
            OutputProblem: a second event file, a damaged one, a value that is no scalar, or as `Order.accept`.
        """
        self._polls += 1
        self._looks = self._looks[1], arrived_ns
        files = sorted(path.name for path in self._folder.glob(FILES))
        if not files:
            return []
        if len(files) > 1:
            raise OutputProblem(f"{len(files)} event files in {self._folder.name}: {visible(files[0])}, "
                                f"{visible(files[1])}; a trial has one writer, in a folder of its own")
        if self._loader is None:
            self._loader = self._loader_of(str(self._folder / files[0]))
        from google.protobuf.message import DecodeError

        wall_offset = arrived_ns - time.time_ns()
        try:
            return [self._observation(event, value, arrived_ns, wall_offset)
                    for event in self._loader.Load() for value in event.summary.value if value.tag == self._tag]
        except (DecodeError, ValueError) as reason:
            raise OutputProblem(f"{visible(files[0])} is damaged: {visible(str(reason))}") from None

    def _observation(self, event: Any, value: Any, arrived_ns: int, wall_offset: int) -> Observation:
        from tensorboard.util.tensor_util import make_ndarray

        array = make_ndarray(value.tensor)
        if array.shape or array.dtype.kind not in "fiu":
            raise OutputProblem(f"tag {quoted(self._tag)} holds no scalar at step {event.step}")
        step, wall = int(event.step), event.wall_time
        return self._order.accept(Observation(
            "evaluation", arrived_ns, self._polls,
            step=step if self._axis == "step" else None,
            samples=step if self._axis == "samples" else None,
            epochs=float(step) if self._axis == "epoch" else None,
            value=float(array), own_ns=round(wall * 1e9) + wall_offset if math.isfinite(wall) else None,
            since_ns=self._looks[0],
        ), f"{self._tag} at step {step}")
