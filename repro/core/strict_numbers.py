"""Find booleans given for numbers: Python treats true as 1, but `processes: true` does not mean one process."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel


def find_misplaced_boolean(model: type[BaseModel], data: Any) -> str | None:
    """Return the first key of `data` with a boolean where `model` needs a number; None if there is none."""
    if not isinstance(data, Mapping):
        return None
    for name, field in model.model_fields.items():
        for key in {name, field.alias or name}:
            if isinstance(data.get(key), bool) and _only_numbers(field.annotation):
                return key
    return None


def _only_numbers(annotation: Any) -> bool:
    """Return True if the field allows only numbers (or null)."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _only_numbers(get_args(annotation)[0])
    if origin in (Union, UnionType):
        kinds = [item for item in get_args(annotation) if item is not NoneType]
        return bool(kinds) and all(_only_numbers(item) for item in kinds)
    if origin is Literal:
        return all(isinstance(item, int | float) and not isinstance(item, bool) for item in get_args(annotation))
    return annotation in (int, float)
