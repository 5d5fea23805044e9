"""The base classes of events: how a model becomes a line of the log, and a line a model."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import PlainSerializer, PlainValidator
from typing_extensions import Self

from repro.core.events import EventType
from repro.core.frozen import Lenient


class LogEvent(Lenient):
    """An event whose value has its fields; a field that was not given is left out.

    A reader ignores fields that it does not know, so that a later version may add some.
    """

    key: ClassVar[str]
    event_type: ClassVar[EventType] = "POINT_IN_TIME"

    def body(self) -> tuple[Any, dict[str, Any]]:
        """Return the event's value and its metadata (JSON-like)."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True), {}

    @classmethod
    def from_parts(cls, value: Any, metadata: Mapping[str, Any]) -> Self:
        """Return the event with this value and metadata.

        Raises:
            ValidationError: they do not fit the event.
        """
        return cls.model_validate(value)


class ValueEvent(LogEvent):
    """An event whose field `value`, if it has one, is its value; the other fields are metadata."""

    def body(self) -> tuple[Any, dict[str, Any]]:
        data = self.model_dump(mode="json", by_alias=True, exclude_unset=True)
        return data.pop("value", None), data

    @classmethod
    def from_parts(cls, value: Any, metadata: Mapping[str, Any]) -> Self:
        return cls.model_validate({**metadata, "value": value})


class Start(ValueEvent):
    """Begin of an interval."""

    event_type = "INTERVAL_START"


class Stop(ValueEvent):
    """End of an interval."""

    event_type = "INTERVAL_END"


def _pack(values: Any) -> array[float]:
    try:
        return array("d", [math.nan if value is None else value for value in values])
    except (TypeError, OverflowError) as error:
        raise ValueError("is not a list of numbers") from error


def _unpack(values: Sequence[float]) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values]


Series = Annotated[Sequence[float], PlainValidator(_pack), PlainSerializer(_unpack)]
"""A number for every step, packed: a long log has millions. NaN (in the log null): it was not finite."""


def count_packed(event: LogEvent) -> int:
    """Return the numbers that an event holds packed; 0: it has no `Series`."""
    return sum(len(value) for _, value in event if isinstance(value, array))
