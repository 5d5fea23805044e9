"""Reads a log: lines become the models of `schema`, and an event that no model knows stays as it is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from repro.core.errors import OutputError, one_line
from repro.core.events import TOKEN, Event, complete_lines, follow, parse_line
from repro.record.log.event import LogEvent
from repro.record.log.schema import KINDS, CacheClear, EffectiveSettings
from repro.record.result.reasons import LogDamaged

DAMAGED = "a damaged line"
WHOLE_LOG = CacheClear.key, EffectiveSettings.key
"""The first and the last event of the log of a trial that ended by itself."""


class MalformedEvent(ValueError):
    """An event whose fields do not fit its model: which event, which field, what is wrong."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """One event of a log, and when it was written."""

    event: LogEvent | Event
    """`Event`: no model knows its key."""
    at_ns: int | None
    """Monotonic nanoseconds of the rank that wrote it; None in logs of other programs."""
    time_ms: float
    """Since 1970."""


def interpret(event: Event) -> Recorded:
    """Return an event as its model.

    Raises:
        MalformedEvent: its fields do not fit.
    """
    kind = KINDS.get(event.key)
    if kind is None:
        return Recorded(event, event.nanoseconds, event.time_ms)
    try:
        return Recorded(kind.from_parts(event.value, event.metadata), event.nanoseconds, event.time_ms)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise MalformedEvent(one_line(f"{event.key}: {place + ': ' if place else ''}{first['msg']}")) from None


def follow_log(path: Path, offset: int = 0) -> Iterator[tuple[Recorded | None, int]]:
    """Yield events from byte `offset` on, each with the offset after it; None for a line without a readable event.

    A last line without its newline is still being written and left for the next call. Yields nothing without a log.
    """
    for event, after in follow(path, offset):
        try:
            yield interpret(event) if event is not None else None, after
        except MalformedEvent:
            yield None, after


def read_lines(path: Path) -> Iterator[tuple[str, Recorded | None, str]]:
    """Yield every complete line of a log, its event, and why it has none: `DAMAGED`, or what is malformed.

    Yields nothing without a log.
    """
    for line, _ in complete_lines(path):
        event = parse_line(line)
        try:
            yield line, interpret(event) if event else None, "" if event else DAMAGED
        except MalformedEvent as error:
            yield line, None, str(error)


def read_log(path: Path, skip_malformed: bool = False) -> list[Recorded]:
    """Return the events of a log. Damaged lines are skipped, as is a last line without its newline.

    Args:
        skip_malformed: of a trial that failed: what can be read is worth more than nothing.

    Raises:
        OutputError: a malformed event.
    """
    found: list[Recorded] = []
    for number, (_, recorded, problem) in enumerate(read_lines(path), 1):
        if problem not in ("", DAMAGED) and not skip_malformed:
            raise OutputError(f"{path}:{number}: {problem}")
        found += [recorded] if recorded else []
    return found


def log_damage(log: Path) -> LogDamaged | None:
    """Return the damage of the log of a trial whose ranks all ended with success; None if it is complete.

    A line that does not start with the token or cannot be parsed was modified after it was written. With an evaluation
    missing from its log, a trial would get a later time to the target than it took. The fields of an event are checked
    against its model.
    """
    first = last = ""
    malformed: LogDamaged | None = None
    lines = bad = 0
    try:
        with log.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - 1))
            if stream.read(1) != b"\n":
                return LogDamaged(problem="torn")
        for lines, (line, recorded, problem) in enumerate(read_lines(log), 1):
            bad += not line.startswith(TOKEN) or problem == DAMAGED
            last = recorded.event.key if recorded else ""
            first = first or last
            if problem and malformed is None:
                malformed = LogDamaged(problem="malformed", lines=lines, error=problem)
    except OSError as error:
        return LogDamaged(problem="unreadable", error=str(error.strerror))
    if bad:
        return LogDamaged(problem="lines", bad=bad, lines=lines)
    return malformed or (None if (first, last) == WHOLE_LOG else LogDamaged(problem="incomplete"))
