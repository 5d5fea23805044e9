"""Counts of one rank's messages to and from servers, in the format of `Comm.traffic`."""

from __future__ import annotations

import threading
from typing import Any


class Counts:
    """Bytes by operation, and seconds of waiting; written by the worker's thread and those that serve."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: dict[str, dict[str, Any]] = {}
        self._waited = 0.0

    def count(self, operation: str, payload: int, sent: int, received: int) -> None:
        """Count one message of float32 weights or gradients; `sent` and `received` are bytes on the wire."""
        with self._lock:
            line = self._lines.setdefault(operation, {
                "operation": operation, "dtype": "float32", "collectives": 0, "payload_bytes": 0, "sent_bytes": 0,
                "received_bytes": 0})
            line["collectives"] += 1
            line["payload_bytes"] += payload
            line["sent_bytes"] += sent
            line["received_bytes"] += received

    def wait(self, seconds: float) -> None:
        """Count time in which the worker waited for messages."""
        with self._lock:
            self._waited += seconds

    def sums(self) -> dict[str, int]:
        """Return the bytes on the wire since the last `take`, of all operations."""
        with self._lock:
            return {key: sum(line[key] for line in self._lines.values()) for key in ("sent_bytes", "received_bytes")}

    def take(self) -> dict[str, Any]:
        """Return everything since the last call (JSON-like), and reset."""
        with self._lock:
            found = {"lines": [self._lines[key] for key in sorted(self._lines)], "busy_seconds": self._waited,
                     "exposed_seconds": self._waited, "overlapped_seconds": 0.0}
            self._lines, self._waited = {}, 0.0
        return found
