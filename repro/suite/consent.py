"""Consent to code that a record brings with it: what would run, one hash over all of it, and the refusal without it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence

from repro.core.errors import UsageError
from repro.suite.carried_code import CarriedCode
from repro.suite.cell import Cell

LEAST_DIGITS = 12
"""Digits of the hash that are enough for a record which the user has read. Two records that agree in so few can be made
on purpose, so an error shows all 64."""
SHOWN = 6
"""Number of pieces of code that an error names."""


def carried_by(cells: Iterable[Cell]) -> list[CarriedCode]:
    """Return all code that trials of the cells execute and that no package brings, each once, sorted."""
    return sorted({item for cell in cells for item in cell.choices.carried_code()})


def code_sha256(items: Iterable[CarriedCode]) -> str:
    """Return the hash of all of it together, which a user states to allow it."""
    return hashlib.sha256(json.dumps(sorted([item.what, item.sha256] for item in items)).encode()).hexdigest()


def code_permission(cells: Iterable[Cell]) -> str:
    """Return the argument that allows the code of the cells; "" if they bring none."""
    found = carried_by(cells)
    return f" --allow-code {code_sha256(found)}" if found else ""


def require_code(source: str, cells: Sequence[Cell], given: str | None) -> None:
    """Refuse a record that brings code unless the user states its hash.

    Args:
        source: the record, for the error.
        given: the hash, or its first digits; None: nothing is allowed.

    Raises:
        UsageError: what would run, where its source lies, and how to allow it; or `given` does not fit.
    """
    found = carried_by(cells)
    if given is not None and not re.fullmatch(rf"[0-9a-f]{{{LEAST_DIGITS},64}}", given.lower()):
        raise UsageError(f"--allow-code {given[:80]}: must be the hash that the error without it shows, or its first "
                         f"{LEAST_DIGITS} or more hex digits")
    if not found:
        if given is not None:
            raise UsageError(f"--allow-code {given[:16]}: {source} brings no code of its own; leave the option out")
        return
    whole = code_sha256(found)
    if given is not None and whole.startswith(given.lower()):
        return
    names = "; ".join(item.text() for item in found[:SHOWN])
    more = f" (and {len(found) - SHOWN} more)" if len(found) > SHOWN else ""
    other = f"--allow-code {given[:16]} is the hash of other code; " if given is not None else ""
    raise UsageError(f"{source}: {other}this would run code that the record brings: {names}{more}; read it there, and "
                     f"if you trust it add --allow-code {whole}")
