"""Checks of what a record calls a plug-in: a label may leave options out, but states none that the plug-in lacks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from repro.core.redact import without_users
from repro.suite.field_problem import as_text


def is_label(text: str, kind: str, options: Mapping[str, Any]) -> bool:
    """Return whether `text` is the name `kind`, or `kind (option=value, ...)` with options of that value.

    Which options a label names depends on the defaults of the plug-in, which change from version to version.
    """
    return named_options(text, kind, options) is not None


def named_options(text: str, kind: str, options: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the names of the options that a label states; None if it is no label of the plug-in."""
    if text == kind:
        return ()
    if not (text.startswith(f"{kind} (") and text.endswith(")")):
        return None
    found: list[str] = []
    rest = text[len(kind) + 2:-1]
    for key, value in sorted(options.items()):
        if rest.startswith(f"{key}=") and (length := _length(rest[len(key) + 1:], value)) is not None:
            rest = rest[len(key) + 1 + length:].removeprefix(", ")
            found.append(key)
            if not rest:
                return tuple(found)
    return None


def is_text_of(text: str, value: Any) -> bool:
    """Return whether `text` states `value`; 1 states 1.0, as a default that no one has converted is written."""
    return _length(text, value) == len(text)


def _length(text: str, value: Any) -> int | None:
    """Return how many characters at the start of `text` state `value`, up to its end or a comma; None: it does not."""
    whole = without_users(as_text(value))
    if text == whole or text.startswith(f"{whole}, "):
        return len(whole)
    if isinstance(value, str | bool | None):
        return None
    try:
        found, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return None
    return end if _is_part(found, value) and text[end:end + 2] in ("", ", ") else None


def _is_part(part: Any, value: Any) -> bool:
    """Return whether `part` is `value`, perhaps without some keys of its mappings: labels leave defaults out."""
    if isinstance(part, dict) and isinstance(value, dict):
        return all(key in value and _is_part(item, value[key]) for key, item in part.items())
    if isinstance(part, list) and isinstance(value, list):
        return len(part) == len(value) and all(map(_is_part, part, value))
    return (type(part) is type(value) and part == value) or (
        {type(part), type(value)} == {int, float} and part == value)
