"""Reads a log: lines become the models of `schema`, and an event that no model knows stays as it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from repro.core.errors import OutputError, one_line
from repro.core.events import Event, follow
from repro.record.log.event import LogEvent
from repro.record.log.schema import KINDS


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


def read_log(path: Path, skip_malformed: bool = False) -> list[Recorded]:
    """Return the events of a log. Damaged lines are skipped, as is a last line without its newline.

    Args:
        skip_malformed: of a trial that failed: what can be read is worth more than nothing.

    Raises:
        OutputError: a malformed event.
    """
    found: list[Recorded] = []
    for number, (event, _) in enumerate(follow(path), 1):
        try:
            found += [interpret(event)] if event is not None else []
        except MalformedEvent as error:
            if not skip_malformed:
                raise OutputError(f"{path}:{number}: {error}") from None
    return found
