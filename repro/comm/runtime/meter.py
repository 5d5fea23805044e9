"""What a rank's communication came to: bytes by operation and type, and how much of its time the training waited."""

from __future__ import annotations

import time
from dataclasses import dataclass
from threading import Lock
from typing import Any


@dataclass(slots=True)
class Line:
    """All collectives of one operation and type."""

    collectives: int = 0
    payload_bytes: int = 0
    sent_bytes: int | None = 0
    """None: done by the inner group, which does not count."""
    received_bytes: int | None = 0


class Meter:
    """Counts for one rank; written by the lane's thread and by callers that wait.

    Busy is the time in which a collective ran, exposed the time in which the caller stood still for it: inside `wait`,
    or, where only the future is waited for (DDP waits inside C++), from its last submission on until `returned`.
    Overlapped is what ran while the caller did not stand still.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._since = time.perf_counter()
        self._reset()

    def _reset(self) -> None:
        self._lines: dict[tuple[str, str], Line] = {}
        self._busy = self._exposed = self._overlapped = 0.0
        self._runs: list[tuple[float, float]] = []

    def submitted(self) -> None:
        """The caller computed up to here."""
        self._since = time.perf_counter()

    def ran(self, start: float, stop: float) -> None:
        """A collective kept the links busy from `start` to `stop`."""
        with self._lock:
            self._busy += stop - start
            self._runs.append((start, stop))

    def waited(self, start: float, stop: float) -> None:
        """The caller was blocked from `start` to `stop`."""
        with self._lock:
            self._exposed += stop - start
            self._settle(start, stop)

    def returned(self, since: float | None) -> None:
        """The caller, blocked by what ran after `since` (its last submission), goes on."""
        with self._lock:
            stop = time.perf_counter()
            self._exposed += self._settle(self._since if since is None else since, stop)

    def _settle(self, start: float, stop: float) -> float:
        """Seconds of the runs so far inside [start, stop]; the rest of them was overlapped."""
        inside = sum(max(0.0, min(stop, end) - max(start, begin)) for begin, end in self._runs)
        self._overlapped += sum(end - begin for begin, end in self._runs) - inside
        self._runs.clear()
        return inside

    def count(self, operation: str, dtype: str, payload: int, sent: int | None, received: int | None) -> None:
        """One collective on `payload` bytes of this rank."""
        with self._lock:
            line = self._lines.setdefault((operation, dtype), Line())
            line.collectives += 1
            line.payload_bytes += payload
            line.sent_bytes = _plus(line.sent_bytes, sent)
            line.received_bytes = _plus(line.received_bytes, received)

    def take(self) -> dict[str, Any]:
        """Everything since the last call (JSON-like); seconds of this rank."""
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
