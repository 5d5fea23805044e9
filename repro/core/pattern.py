"""Patterns over factors: `{engine: ddp, processes: 1}` selects the cells that have these values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def get(data: Mapping[str, Any], key: str) -> Any:
    """Return the value at a dotted path; None if the path ends early."""
    value: Any = data
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def flat(data: Mapping[str, Any] | Sequence[Any], prefix: str = "", lists: bool = False) -> dict[str, Any]:
    """Flatten nested data to dotted names, as in the matrix of a suite.

    Args:
        lists: flatten lists too, items by their number.
    """
    found: dict[str, Any] = {}
    for key, value in data.items() if isinstance(data, Mapping) else enumerate(data):
        if isinstance(value, Mapping | list | tuple if lists else Mapping) and value:
            found |= flat(value, f"{prefix}{key}.", lists)
        else:
            found[f"{prefix}{key}"] = value
    return found


def put(data: dict[str, Any], key: str, value: Any) -> None:
    """Set the value at a dotted path; a plug-in given as a name becomes a mapping."""
    *parents, last = key.split(".")
    for part in parents:
        inner = data.get(part)
        if isinstance(inner, str):
            inner = {"kind": inner}
        data[part] = dict(inner) if isinstance(inner, Mapping) else {}
        data = data[part]
    data[last] = value


def agrees(value: Any, wanted: Any) -> bool:
    """Return True if a cell's value matches a pattern's; a plug-in may be given as a name, an option set as true."""
    if isinstance(value, Mapping) and wanted is True:
        return True
    if isinstance(value, Mapping) and isinstance(wanted, str):
        return value.get("kind") == wanted
    if isinstance(value, Mapping) and isinstance(wanted, Mapping):
        return all(agrees(value.get(key), item) for key, item in wanted.items())
    if isinstance(wanted, list) and not isinstance(value, list):
        return any(agrees(value, item) for item in wanted)
    return bool(value == wanted)


def matches(cell: Mapping[str, Any], pattern: Mapping[str, Any]) -> bool:
    """Return True if the cell (its choices as JSON) matches every factor of the pattern."""
    return all(agrees(get(cell, key), wanted) for key, wanted in pattern.items())
