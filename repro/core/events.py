"""Event log in MLPerf's `:::MLLOG` lines: write our own, read our own and published ones.

One line is `:::MLLOG {"namespace", "time_ms", "event_type", "key", "value", "metadata"}`. Keys are MLPerf's own if
MLPerf has one (docs/method.md section 2); our keys start with `x_`. `metadata` holds monotonic nanoseconds and the
rank.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from repro.core import door

TOKEN = ":::MLLOG "
EVALUATION_KEYS = ("eval_accuracy", "eval_error")
"""MLPerf's keys of a quality metric: higher is better, lower is better."""
MAX_LINE = 16 << 20
LIMIT = MAX_LINE + len(TOKEN) + 1
"""Most bytes of a line with an event, newline included."""
MAX_PARTS = 200_000
"""Most lists and objects in one line: empty ones take twenty times their text in memory."""
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
        """Monotonic time of the rank that wrote it; None in logs of other programs."""
        value = self.metadata.get("mono_ns")
        return value if isinstance(value, int) else None

    def line(self) -> str:
        """Return the event as a line of the file, newline included."""
        body = {
            "namespace": self.namespace, "time_ms": self.time_ms, "event_type": self.event_type, "key": self.key,
            "value": self.value, "metadata": dict(self.metadata),
        }
        return f"{TOKEN}{json.dumps(body, allow_nan=False)}\n"


FLUSH_NS = 5 * 10**9
"""Least time between two writes of `flush_if_due`, nanoseconds, unless its caller passes another one."""


class EventLog:
    """Log of one rank. Events become lines in `flush`: nothing is written inside a timed step, and many lines made at
    once cost a fifth of the same made one by one, each from cold caches."""

    def __init__(
        self, path: Path | None, rank: int = 0, now: Callable[[], int] = time.monotonic_ns,
        anchor_ms: float | None = None, before: bytes = b"",
    ) -> None:
        """Create `path`, or overwrite it.

        Args:
            path: None for a rank without a log; its events are dropped.
            now: monotonic clock, nanoseconds.
            anchor_ms: wall clock, milliseconds since 1970, at this moment; None: read once from the machine.
            before: lines of the earlier attempt that this one resumes.
        """
        self._path = path
        self._stream: IO[str] | None = door.open_plain(path, "w", encoding="utf-8") if path else None
        if self._stream is not None:
            self._stream.write(before.decode("utf-8"))
        self._rank, self._now = rank, now
        self._anchor_ms = time.time() * 1e3 if anchor_ms is None else anchor_ms
        self._anchor_ns = self._flushed_ns = now()
        self._events: deque[tuple[Any, int]] = deque()
        """Recorded, not yet lines: the event and its monotonic time."""
        self._lines: list[str] = []
        self._bytes = 0
        self._problem = ""

    def write(self, event: Any, at_ns: int | None = None) -> int:
        """Record an event (`repro.record.log.event.LogEvent`), which must not change afterwards, or a function that
        makes it when its line is made; return its monotonic time in nanoseconds."""
        at = self._now() if at_ns is None else at_ns
        if self._stream is not None:
            self._events.append((event, at))
        return at

    @property
    def recorded_bytes(self) -> int:
        """Bytes of all events recorded here, whose lines are made for it; 0 on a rank without a log."""
        self._make_lines()
        return self._bytes

    def _make_lines(self) -> None:
        """Make a line of every recorded event; drop one with a value that JSON has not, which `flush` tells."""
        while self._events:
            event, at = self._events.popleft()
            time_ms = round(self._anchor_ms + (at - self._anchor_ns) / 1e6, 3)
            try:
                event = event() if callable(event) else event
                value, metadata = event.body()
                metadata = {"rank": self._rank, "mono_ns": at, **metadata}
                self._lines.append(line := Event(event.key, value, event.event_type, time_ms, metadata).line())
            except ValueError as error:
                self._problem = self._problem or f"{getattr(event, 'key', 'an event')}: {error}"
                continue
            self._bytes += len(line)  # its JSON is ASCII

    def flush(self) -> None:
        """Pass the recorded events to the operating system, as lines.

        Raises:
            ValueError: an event had a value that JSON has not; all others are written.
        """
        if self._stream is None:
            return
        self._make_lines()
        self._stream.write("".join(self._lines))
        self._lines.clear()
        self._stream.flush()
        self._flushed_ns = self._now()
        if self._problem:
            problem, self._problem = self._problem, ""
            raise ValueError(problem)

    def flush_if_due(self, every_ns: int = FLUSH_NS) -> None:
        """Do it if the last time is so many nanoseconds ago."""
        if self._now() - self._flushed_ns >= every_ns:
            self.flush()

    def text(self) -> bytes:
        """Return all lines so far; empty for a rank without a log."""
        self.flush()
        return self._path.read_bytes() if self._path else b""

    def abandon(self) -> None:
        """Close a log that cannot be written any more; its unwritten lines are lost."""
        if self._stream is not None:
            with contextlib.suppress(OSError):
                self._stream.close()

    def leave_to_parent(self) -> None:
        """Call it in a forked process: the log is the parent's alone, and nothing here can write to it."""
        if self._stream is None:
            return
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())  # what is still in its buffer is the parent's to write
        os.close(nowhere)
        self._stream.close()
        self._stream, self._lines = None, []
        self._events.clear()

    def close(self) -> None:
        """Flush, make the file durable, close it."""
        if self._stream is None:
            return
        try:
            self.flush()
        finally:
            os.fsync(self._stream.fileno())
            self._stream.close()


def parse_line(line: str) -> Event | None:
    """Parse the event in a line, at any position; return None if there is none or it is damaged."""
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


def complete_lines(path: Path, offset: int = 0) -> Iterator[tuple[str, int]]:
    """Yield the lines of a log from byte `offset` on without their newlines, each with the offset after it.

    One at a time is in memory; of a line longer than any event only its beginning, which is no event. A last line
    without its newline is still being written and left for the next call. Yields nothing without a log.

    Raises:
        OSError: it cannot be read.
    """
    with contextlib.suppress(FileNotFoundError), door.open_plain(path) as stream:
        stream.seek(offset)
        while raw := stream.readline(LIMIT):
            offset += len(raw)
            cut = False
            rest = raw
            while not rest.endswith(b"\n"):
                if len(rest) < LIMIT:  # end of the file: this line may still be being written
                    return
                rest = stream.readline(LIMIT)
                cut = True
                offset += len(rest)
            text = raw.removesuffix(b"\n").decode("utf-8", errors="replace")
            # A cut line must not become an event that the whole line is not.
            yield (f"{text} ...", offset) if cut else (text, offset)


def follow(path: Path, offset: int = 0) -> Iterator[tuple[Event | None, int]]:
    """Yield the events in the lines that `complete_lines` gives, each with the offset after it; None for a line without
    an event."""
    return ((parse_line(line), after) for line, after in complete_lines(path, offset))


def read_events(path: Path, offset: int = 0) -> tuple[list[Event], int]:
    """Return the events from byte `offset` on and the next offset, as `follow`. Damaged lines are skipped."""
    events: list[Event] = []
    for event, after in follow(path, offset):
        offset = after
        if event is not None:
            events.append(event)
    return events, offset
