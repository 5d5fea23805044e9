"""An entry point named in text, and an exception as the reason and cause of a rank's end."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from repro.core.errors import CheckpointRefused, OutOfMemory
from repro.core.machine import is_out_of_memory
from repro.core.redact import masked
from repro.seams.launching import RankCause

Entry = Callable[[str, Mapping[str, Any]], object]
LONGEST_REASON = 500


def resolve(entry: str) -> Entry:
    """Import and return the function named by "module:function"."""
    module, _, name = entry.partition(":")
    function: Entry = getattr(importlib.import_module(module), name)
    return function


def reason(error: BaseException) -> str:
    """Return type and first line of an exception; without credentials, because it goes into the record.

    The type is omitted where `cause` says it already.
    """
    lines = masked(str(error)).strip().splitlines()
    kind = type(error).__name__
    if lines and isinstance(error, CheckpointRefused | OutOfMemory):
        return lines[0][:LONGEST_REASON]
    return f"{kind}: {lines[0]}"[:LONGEST_REASON] if lines else kind


def cause(error: BaseException) -> RankCause:
    """Return the cause of a rank's end that `error` means."""
    if isinstance(error, CheckpointRefused):
        return "checkpoint_refused"
    return "out_of_memory" if is_out_of_memory(error) else "failed"


def exit_code(error: SystemExit) -> int:
    """Return the exit code of a process that raises `error`, as the interpreter computes it."""
    if error.code is None:
        return 0
    return error.code if isinstance(error.code, int) else 1
