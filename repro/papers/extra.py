"""Packages that only papers need: the extra `papers`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from repro.core.errors import UsageError
from repro.core.machine import why_missing


def require(package: str, module: str) -> None:
    """Check that a package of the extra is installed.

    Raises:
        UsageError: it is not; the message says how to install it.
    """
    if reason := why_missing("papers", package, module):
        raise UsageError(reason)


def imported(package: str, module: str) -> Any:
    """Import and return a module of a package of the extra.

    Raises:
        UsageError: it is not installed; the message says how to install it.
    """
    require(package, module)
    return import_module(module)
