"""An entry point named in text, and an exception told in one line."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from repro.core.redact import masked

Entry = Callable[[str, Mapping[str, Any]], object]
LONGEST_REASON = 500


def resolve(entry: str) -> Entry:
    """Import and return the function named by "module:function"."""
    module, _, name = entry.partition(":")
    function: Entry = getattr(importlib.import_module(module), name)
    return function


def reason(error: BaseException) -> str:
    """Type and first line of what an exception says; without credentials, because it goes into the record."""
    lines = masked(str(error)).strip().splitlines()
    kind = type(error).__name__
    return f"{kind}: {lines[0]}"[:LONGEST_REASON] if lines else kind


def exit_code(error: SystemExit) -> int:
    """Return the exit code of a process that raises `error`, as the interpreter computes it."""
    if error.code is None:
        return 0
    return error.code if isinstance(error.code, int) else 1
