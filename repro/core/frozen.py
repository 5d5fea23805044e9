"""The base classes of all content of files: immutable, without unknown keys; the hash of one; the record format."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, model_validator
from pydantic_core import PydanticCustomError, PydanticSerializationError
from typing_extensions import Self


def fail_fast(schema: Any) -> Any:
    """Return a core schema in which every list and tuple stops at its first error."""
    if isinstance(schema, dict):
        found = {key: fail_fast(value) for key, value in schema.items()}
        return {**found, "fail_fast": True} if schema.get("type") in ("list", "tuple") else found
    return [fail_fast(item) for item in schema] if isinstance(schema, list) else schema


class Frozen(BaseModel):
    """Base of all records: immutable; unknown keys are an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    def model_dump(self, **how: Any) -> dict[str, Any]:
        """Return the fields as pydantic does.

        Raises:
            KeyboardInterrupt: a signal arrived while one of our serializers ran; pydantic would wrap it in an error.
        """
        try:
            return super().model_dump(**how)
        except PydanticSerializationError as error:
            if isinstance(error.__cause__, KeyboardInterrupt):
                raise error.__cause__ from None
            raise

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with other fields, as pydantic does, without the cached properties of this object."""
        copied = super().model_copy(update=update, deep=deep)
        for name in copied.__dict__.keys() - type(self).model_fields.keys():
            del copied.__dict__[name]
        return copied

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:
        """Stop validating a list at its first error: one error for each of a million values would fill the memory."""
        return fail_fast(handler(source))


class Lenient(Frozen):
    """Base of what another version may have written: unknown keys are ignored."""

    model_config = ConfigDict(extra="ignore")


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


def canonical(model: BaseModel, exclude: set[str] | None = None) -> str:
    """Return the one JSON text of a model: every field but those of `exclude`, keys sorted, no spaces."""
    return canonical_text(model.model_dump(mode="json", by_alias=True, exclude=exclude))


def canonical_text(data: Mapping[str, Any]) -> str:
    """Return the same of the fields."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"))


def digest(model: BaseModel) -> str:
    """Return the sha256 of the canonical JSON, hex."""
    return hashlib.sha256(canonical(model).encode()).hexdigest()
