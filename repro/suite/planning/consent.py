"""Consent to code that a record brings with it: what would run, one hash over all of it, and the refusal without it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence

from repro.core.errors import UsageError
from repro.suite.kinds.trial_config import CarriedCode
from repro.suite.planning.cell import Cell

LEAST_DIGITS = 12
"""Digits of the hash that are enough for a record which the user has read. Two records that agree in so few can be made
on purpose, so an error shows all 64."""


def carried_by(cells: Iterable[Cell], base: str = "") -> list[CarriedCode]:
    """Return all code that trials of the cells execute and that no package brings, each once, sorted.

    Args:
        base: folder in which programs run, relative to the record; "": from their stored source.
    """
    found = sorted({item for cell in cells for item in cell.choices.carried_code()})
    return [*found, CarriedCode("in the folder of the suite", "", base)] if found and base else found


def code_sha256(items: Iterable[CarriedCode]) -> str:
    """Return the hash of all of it together, which a user states to allow it."""
    listed = sorted([item.what, item.sha256, item.place] for item in items)
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()


def code_permission(cells: Iterable[Cell], base: str = "") -> str:
    """Return the argument that allows the code of the cells; "" if they bring none."""
    found = carried_by(cells, base)
    return f" --allow-code {code_sha256(found)}" if found else ""


def require_code(source: str, cells: Sequence[Cell], given: str | None, base: str = "") -> None:
    """Refuse a record that brings code unless the user states its hash.

    Args:
        source: the record, for the error.
        given: the hash, or its first digits; None: nothing is allowed.
        base: folder in which programs run, relative to the record; "": from their stored source.

    Raises:
        UsageError: what would run, where its source lies, and how to allow it; or `given` does not fit.
    """
    found = carried_by(cells, base)
    if given is not None and not re.fullmatch(rf"[0-9a-f]{{{LEAST_DIGITS},64}}", given.lower()):
        raise UsageError(f"--allow-code {given[:80]}: must be the hash that the error without it shows, or its first "
                         f"{LEAST_DIGITS} or more hex digits")
    if not found:
        if given is not None:
            raise UsageError(f"--allow-code {given[:16]}: {source} contains no code; leave the option out")
        return
    whole = code_sha256(found)
    if given is not None and whole.startswith(given.lower()):
        return
    names = "; ".join(item.text() for item in found)  # all of them: the author of a record chose their order
    other = f"--allow-code {given[:16]} is the hash of other code; " if given is not None else ""
    raise UsageError(f"{source}: {other}this would run code that the record brings: {names}; read it there, and "
                     f"if you trust it add --allow-code {whole}")
