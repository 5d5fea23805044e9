"""The number of the format of records, imports and bundles, stated in the one file that each is read by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from repro.core.frozen import Frozen

FORMAT: Literal[1] = 1
"""Changes with every change after which an older reader would be wrong; not promised before version 1.0."""


class Formatted(Frozen):
    """The content of a file that states the format; a file of another format is refused before anything else of it."""

    format: Literal[1] = Field(description="the record format")

    @model_validator(mode="before")
    @classmethod
    def _one_format(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and data.get("format") != FORMAT:
            given = repr(data["format"])[:20] if "format" in data else "not stated"
            raise PydanticCustomError("format", "record format {given}; this version of repro reads format {known}",
                                      {"given": given, "known": FORMAT})
        return data
