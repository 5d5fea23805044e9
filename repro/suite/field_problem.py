"""Problems in what a suite says: one sentence and the path to the field, made from pydantic's errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from repro.core.errors import SuiteError, nearest
from repro.core.frozen import Frozen
from repro.core.yaml_file import FieldPath
from repro.seams.plugin import no_boolean_number

SCHEDULES = ("constant", "step", "polynomial", "cosine")
"""Tags that pydantic adds to the path of a field of a schedule; no suite writes them there."""

Problem = Callable[[str, FieldPath], SuiteError]
"""Makes the error of a problem at a field; that of a suite's file names its line."""


def unlocated(text: str, path: FieldPath) -> SuiteError:
    """Return the error of a problem in a suite of which no file is known."""
    return SuiteError(text, field=".".join(map(str, path)))


class FieldProblem(ValueError):
    """A problem below the field being validated; `path` leads to it."""

    def __init__(self, problem: str, path: tuple[str | int, ...] = ()) -> None:
        super().__init__(problem)
        self.path = path


class SuitePart(Frozen):
    """Base of the parts of a suite: numbers are finite, and true is not a number."""

    model_config = ConfigDict(allow_inf_nan=False)
    _numbers = field_validator("*", mode="wrap")(no_boolean_number)


def describe_error(error: ValidationError, model: type[BaseModel]) -> tuple[str, tuple[str | int, ...]]:
    """Return the first problem of a pydantic error: one sentence, and the path to the field."""
    # Of `compile`, which may be false, the mapping that was written is wrong.
    items: list[dict[str, Any]] = [
        {**item, "loc": tuple(part for part in item["loc"] if part != "Compilation")}
        for item in error.errors(include_url=False) if "literal[False]" not in item["loc"]]
    # If a key is missing because it is misspelt, the misspelling is what to fix.
    misspelt = [item for item in items if item["type"] == "extra_forbidden" and items[0]["type"] == "missing"]
    item = (misspelt or items)[0]
    path = tuple(part for part in item["loc"] if part not in SCHEDULES)
    cause = (item.get("ctx") or {}).get("error")
    if isinstance(cause, FieldProblem):
        return str(cause), (*path, *cause.path)
    if item["type"] == "extra_forbidden":
        return f"unknown key{nearest(str(path[-1]), known_keys(model, item['loc'][:-1]))}", path
    if item["type"] == "missing":
        return "is missing", path
    if item["type"] in ("union_tag_invalid", "union_tag_not_found"):
        return f"kind must be one of {item['ctx'].get('expected_tags', ', '.join(SCHEDULES))}", path
    kind = item["ctx"]["pattern"] if item["type"] == "string_pattern_mismatch" else item["type"]
    text = str(cause) if cause is not None else KINDS.get(kind) or (
        item["msg"][0].lower() + item["msg"][1:]).replace("input should be", "must be", 1)
    given = item["input"]
    shown = str(given).lower() if isinstance(given, bool) else as_text(given)[:60]
    quotes = "; in quotes it is text" if item["type"] == "string_type" and isinstance(given, int | float) else ""
    return (f"{text} (given: {shown}){quotes}" if isinstance(given, str | int | float | list) else text), path


SUITE_NAME = "^[a-z][a-z0-9-]{0,63}$"
KINDS = {
    "tuple_type": "must be a list", "list_type": "must be a list", "dict_type": "must be a mapping",
    "model_type": "must be a mapping", "string_type": "must be text", "int_type": "must be a whole number",
    "int_parsing": "must be a whole number", "int_from_float": "must be a whole number",
    "float_type": "must be a number", "float_parsing": "must be a number", "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    SUITE_NAME: "must be lower-case letters, digits and hyphens, at most 64, the first a letter",
}
"""What pydantic's errors of type, and of a pattern, mean to the author of a YAML file."""


def as_text(value: Any) -> str:
    """Return lists and mappings as compact JSON, anything else as `str` does."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")) if isinstance(value, dict | list) else str(value)


def known_keys(model: type[BaseModel], path: tuple[str | int, ...]) -> list[str]:
    """Return the keys that the model at `path` below `model` accepts; none if no single model is there."""
    models: list[type[BaseModel]] = [model]
    for part in path:
        tagged = [item for item in models if "kind" in item.model_fields and item.model_fields["kind"].default == part]
        fields = [field for item in models for name, field in item.model_fields.items() if part in (name, field.alias)]
        types = [kind for field in fields for kind in (field.annotation, *get_args(field.annotation))]
        models = tagged or [kind for kind in types if isinstance(kind, type) and issubclass(kind, BaseModel)]
    return [field.alias or name for name, field in models[0].model_fields.items()] if len(models) == 1 else []
