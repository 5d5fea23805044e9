"""The event log: MLPerf's `:::MLLOG` lines; write one, read many (ours and published ones).

One line is `:::MLLOG {"namespace", "time_ms", "event_type", "key", "value", "metadata"}`. Keys are MLPerf's own where
MLPerf has one (docs/method.md section 2), ours start with `x_`. Monotonic nanoseconds and the rank stand in `metadata`.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

TOKEN = ":::MLLOG "
EVALUATION_KEYS = ("eval_accuracy", "eval_error")
"""MLPerf's keys of a quality: higher is better, lower is better."""
MAX_LINE = 16 << 20
LIMIT = MAX_LINE + len(TOKEN) + 1
"""Bytes of the longest line with an event, newline included."""
MAX_PARTS = 200_000
"""Lists and objects in one line: a stranger's empty ones take twenty times their text in memory."""
EventType = Literal["POINT_IN_TIME", "INTERVAL_START", "INTERVAL_END"]


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a log."""

    key: str
    value: Any
    event_type: EventType
    time_ms: float
    metadata: Mapping[str, Any] = field(default_factory=dict)
    namespace: str = ""

    @property
    def nanoseconds(self) -> int | None:
        """Monotonic time of the rank that wrote it; None in logs of others."""
        value = self.metadata.get("mono_ns")
        return value if isinstance(value, int) else None

    def line(self) -> str:
        """The event as it stands in the file, newline included."""
        body = {
            "namespace": self.namespace, "time_ms": self.time_ms, "event_type": self.event_type, "key": self.key,
            "value": self.value, "metadata": dict(self.metadata),
        }
        return f"{TOKEN}{json.dumps(body, allow_nan=False)}\n"


class EventLog:
    """Writes one rank's events; lines stay in memory until `flush`, so that writing is never inside a timed step."""

    def __init__(
        self, path: Path | None, rank: int = 0, now: Callable[[], int] = time.monotonic_ns,
        anchor_ms: float | None = None, before: bytes = b"",
    ) -> None:
        """Open `path` anew.

        Args:
            path: None for a rank that keeps no log; its events go nowhere.
            now: monotonic clock, nanoseconds.
            anchor_ms: wall clock, milliseconds since 1970, at this moment; None: asked of the machine, once.
            before: lines of an earlier attempt that this one goes on from.
        """
        self._path = path
        self._stream: io.TextIOWrapper | None = path.open("w", encoding="utf-8") if path else None
        if self._stream is not None:
            self._stream.write(before.decode("utf-8"))
        self._rank, self._now = rank, now
        self._anchor_ms = time.time() * 1e3 if anchor_ms is None else anchor_ms
        self._anchor_ns = now()
        self._lines: list[str] = []

    def emit(
        self, key: str, value: Any = None, event_type: EventType = "POINT_IN_TIME", at_ns: int | None = None,
        **metadata: Any,
    ) -> int:
        """Remember one event; its monotonic time in nanoseconds."""
        at = self._now() if at_ns is None else at_ns
        if self._stream is None:
            return at
        time_ms = round(self._anchor_ms + (at - self._anchor_ns) / 1e6, 3)
        event = Event(key, value, event_type, time_ms, {"rank": self._rank, "mono_ns": at, **metadata})
        self._lines.append(event.line())
        return at

    def start(self, key: str, value: Any = None, **metadata: Any) -> int:
        return self.emit(key, value, "INTERVAL_START", **metadata)

    def stop(self, key: str, value: Any = None, **metadata: Any) -> int:
        return self.emit(key, value, "INTERVAL_END", **metadata)

    def flush(self) -> None:
        """Hand the remembered lines to the operating system."""
        if self._stream is None:
            return
        self._stream.write("".join(self._lines))
        self._lines.clear()
        self._stream.flush()

    def text(self) -> bytes:
        """All lines up to now; empty for a rank that keeps no log."""
        self.flush()
        return self._path.read_bytes() if self._path else b""

    def abandon(self) -> None:
        """Close a log that can no longer be written; what it still held is lost."""
        if self._stream is not None:
            with contextlib.suppress(OSError):
                self._stream.close()

    def close(self) -> None:
        """Flush, make it durable, close."""
        if self._stream is None:
            return
        self.flush()
        os.fsync(self._stream.fileno())
        self._stream.close()


def parse_line(line: str) -> Event | None:
    """The event in a line, wherever in the line it starts; None when there is none or it is damaged."""
    _, token, body = line.partition(":::MLLOG")
    if not token or len(body) > MAX_LINE or body.count("[") + body.count("{") > MAX_PARTS:
        return None
    try:
        data = json.loads(body)
        metadata = data.get("metadata") or {}
        if not isinstance(metadata, dict):
            return None
        time_ms = float(data["time_ms"])
        if not math.isfinite(time_ms) or not isinstance(data["event_type"], str):
            return None
        return Event(
            key=str(data["key"]), value=data.get("value"), event_type=data["event_type"],  # type: ignore[arg-type]
            time_ms=time_ms, metadata=metadata,
            namespace=str(data.get("namespace") or ""),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def complete_lines(path: Path) -> Iterator[str]:
    """Lines of a log one after another, without their newlines, whatever its size; of one that is longer than any event
    only its beginning, which is none.

    A last line without its newline is left out.

    Raises:
        OSError: it cannot be read.
    """
    return (line for line, _ in _lines(path, 0))


def _lines(path: Path, offset: int) -> Iterator[tuple[str, int]]:
    """Complete lines from byte `offset` on, each with the offset behind it; one is held in memory at a time."""
    with path.open("rb") as stream:
        stream.seek(offset)
        while raw := stream.readline(LIMIT):
            offset += len(raw)
            cut = False
            rest = raw
            while not rest.endswith(b"\n"):
                if len(rest) < LIMIT:  # the end of the file, now: who writes may be in the middle of this line
                    return
                rest = stream.readline(LIMIT)
                cut = True
                offset += len(rest)
            text = raw.removesuffix(b"\n").decode("utf-8", errors="replace")
            # What was cut off must not turn a line into an event that the whole line is not.
            yield (f"{text} ...", offset) if cut else (text, offset)


def follow(path: Path, offset: int = 0) -> Iterator[tuple[Event | None, int]]:
    """Events from byte `offset` on, each with the offset to go on from after it; None for a line that is no event.

    A last line without its newline is still being written: it is left for the next call. Nothing where there is no log.
    """
    try:
        for line, after in _lines(path, offset):
            yield parse_line(line), after
    except FileNotFoundError:
        return


def read_events(path: Path, offset: int = 0) -> tuple[list[Event], int]:
    """Events from byte `offset` on, and the offset to go on from, as `follow`. Damaged lines are passed over."""
    events: list[Event] = []
    for event, after in follow(path, offset):
        offset = after
        if event is not None:
            events.append(event)
    return events, offset
