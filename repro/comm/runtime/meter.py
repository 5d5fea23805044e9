"""Counts of a rank's communication: bytes by operation and type; busy, exposed and overlapped time, and its clocks.

A clock also orders a lane's collectives relative to the caller's work: immediate on a CPU, a side stream on a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from threading import Lock
from typing import Any, ClassVar

import torch

from repro.core import devices


class OnCpu:
    """On a CPU the caller's work on a tensor is finished when it submits the tensor."""

    on_host: ClassVar[bool] = True
    """Stamps are times of the host."""

    def stamp(self) -> Any:
        """Note the present moment of the current stream."""
        return time.perf_counter()

    def seconds(self, stamp: Any) -> float:
        """Return a stamp as seconds from a moment that all stamps share; waits until the stream has reached it."""
        return float(stamp)

    def mark(self) -> Any:
        """Record the current point of the caller's stream."""
        return None

    @contextmanager
    def after(self, mark: Any, tensors: Sequence[torch.Tensor]) -> Iterator[None]:
        """Run the block's work on `tensors` after `mark`."""
        yield

    def join(self, mark: Any) -> None:
        """Run the caller's further work after `mark`."""


class OnGpu(OnCpu):
    """Kernels and calls of the vendor's library run on a separate stream, ordered by events; the host never waits."""

    on_host: ClassVar[bool] = False

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = devices.stream(device)
        self._read: tuple[Any, float] | None = None
        """The stamp that was read last, and its seconds."""

    def stamp(self) -> Any:
        return devices.event(self.device, timed=True)

    def seconds(self, stamp: Any) -> float:
        """Here measured from the stamp that was read last, before or after it: the driver tells a distance in float32
        milliseconds, of which an hour leaves a quarter.
        """
        stamp.synchronize()
        last, seconds = self._read or (stamp, 0.0)
        seconds += float(last.elapsed_time(stamp)) / 1e3
        self._read = stamp, seconds
        return seconds

    def mark(self) -> Any:
        return devices.event(self.device)

    @contextmanager
    def after(self, mark: Any, tensors: Sequence[torch.Tensor]) -> Iterator[None]:
        with devices.within(self.stream):
            self.stream.wait_event(mark)
            for tensor in tensors:
                if devices.on_gpu(tensor.device):
                    # The allocator must not give the memory away while this stream still uses it.
                    tensor.record_stream(self.stream)
            yield

    def join(self, mark: Any) -> None:
        devices.current_stream(self.device).wait_event(mark)


@dataclass(slots=True)
class OperationCount:
    """Counts of all collectives of one operation and type."""

    collectives: int = 0
    payload_bytes: int = 0
    sent_bytes: int | None = 0
    """None: run by the inner group, which does not count bytes."""
    received_bytes: int | None = 0


class Meter:
    """Counts the communication of one rank; written by the lane's thread and by callers that wait.

    Busy is the time in which a collective ran. Exposed is the time in which the caller was blocked by it: inside
    `wait`, or, if only the future is waited for (DDP waits inside C++), from its last submission until `returned`.
    Overlapped is the busy time in which the caller was not blocked. On a GPU the caller is its stream: moments are
    events in streams, which are read by `take`, when the steps that they measure are over.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self.clock = OnCpu()
        """Makes and reads the moments; a lane sets its own."""
        self._since: Any = None
        self._notes: list[tuple[Callable[[float, float], None], Any, Any]] = []
        self._reset()

    def _reset(self) -> None:
        self._lines: dict[tuple[str, str], OperationCount] = {}
        self._busy = self._exposed = self._overlapped = 0.0
        self._runs: list[tuple[float, float]] = []

    def submitted(self, moment: Any) -> None:
        """Record that the caller computed until `moment`."""
        self._since = moment

    def ran(self, start: Any, stop: Any) -> None:
        """Record that a collective kept the links busy from `start` to `stop`."""
        self._note(self._count_run, start, stop)

    def waited(self, start: Any, stop: Any) -> None:
        """Record that the caller was blocked from `start` to `stop`."""
        self._note(self._count_wait, start, stop)

    def returned(self, since: float | None) -> None:
        """Record that the caller, blocked by the runs after `since` (default: its last submission), continues.

        Args:
            since: time of the host; on a GPU it says nothing about the stream and is not used.
        """
        start = since if since is not None and self.clock.on_host else self._since
        if start is not None:
            self._note(self._count_return, start, self.clock.stamp())

    def _note(self, count: Callable[[float, float], None], start: Any, stop: Any) -> None:
        with self._lock:
            self._notes.append((count, start, stop))

    def _count_run(self, start: float, stop: float) -> None:
        self._busy += stop - start
        self._runs.append((start, stop))

    def _count_wait(self, start: float, stop: float) -> None:
        self._exposed += stop - start
        self._split_runs(start, stop)

    def _count_return(self, start: float, stop: float) -> None:
        self._exposed += self._split_runs(start, stop)

    def _split_runs(self, start: float, stop: float) -> float:
        """Return the seconds of the recorded runs inside [start, stop]; count the rest as overlapped."""
        inside = sum(max(0.0, min(stop, end) - max(start, begin)) for begin, end in self._runs)
        self._overlapped += sum(end - begin for begin, end in self._runs) - inside
        self._runs.clear()
        return inside

    def count(self, operation: str, dtype: str, payload: int, sent: int | None, received: int | None) -> None:
        """Count one collective on `payload` bytes of this rank."""
        with self._lock:
            line = self._lines.setdefault((operation, dtype), OperationCount())
            line.collectives += 1
            line.payload_bytes += payload
            line.sent_bytes = _plus(line.sent_bytes, sent)
            line.received_bytes = _plus(line.received_bytes, received)

    def take(self) -> dict[str, Any]:
        """Return everything since the last call as JSON-like data, in seconds of this rank, and reset."""
        with self._lock:
            notes, self._notes = self._notes, []
            for count, start, stop in notes:
                count(self.clock.seconds(start), self.clock.seconds(stop))
            lines = [{"operation": operation, "dtype": dtype, **asdict(line)}
                     for (operation, dtype), line in sorted(self._lines.items())]
            found = {"lines": lines, "busy_seconds": self._busy, "exposed_seconds": self._exposed,
                     "overlapped_seconds": self._overlapped}
            self._reset()
        return found


def _plus(known: int | None, more: int | None) -> int | None:
    return None if known is None or more is None else known + more
