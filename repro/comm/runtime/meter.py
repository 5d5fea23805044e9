"""Counts of a rank's communication: bytes by operation and type, busy, exposed and overlapped time."""

from __future__ import annotations

import time
from dataclasses import dataclass
from threading import Lock
from typing import Any


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
    Overlapped is the busy time in which the caller was not blocked.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._since = time.perf_counter()
        self._reset()

    def _reset(self) -> None:
        self._lines: dict[tuple[str, str], OperationCount] = {}
        self._busy = self._exposed = self._overlapped = 0.0
        self._runs: list[tuple[float, float]] = []

    def submitted(self) -> None:
        """Record that the caller computed until now."""
        self._since = time.perf_counter()

    def ran(self, start: float, stop: float) -> None:
        """Record that a collective kept the links busy from `start` to `stop`."""
        with self._lock:
            self._busy += stop - start
            self._runs.append((start, stop))

    def waited(self, start: float, stop: float) -> None:
        """Record that the caller was blocked from `start` to `stop`."""
        with self._lock:
            self._exposed += stop - start
            self._split_runs(start, stop)

    def returned(self, since: float | None) -> None:
        """Record that the caller, blocked by the runs after `since` (default: its last submission), continues."""
        with self._lock:
            stop = time.perf_counter()
            self._exposed += self._split_runs(self._since if since is None else since, stop)

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
            lines = [
                {"operation": operation, "dtype": dtype, "collectives": line.collectives,
                 "payload_bytes": line.payload_bytes, "sent_bytes": line.sent_bytes,
                 "received_bytes": line.received_bytes}
                for (operation, dtype), line in sorted(self._lines.items())
            ]
            found = {"lines": lines, "busy_seconds": self._busy, "exposed_seconds": self._exposed,
                     "overlapped_seconds": self._overlapped}
            self._reset()
        return found


def _plus(known: int | None, more: int | None) -> int | None:
    return None if known is None or more is None else known + more
