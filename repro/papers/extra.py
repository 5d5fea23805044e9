"""Packages that only papers need: the extra `papers`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from repro.core.errors import UsageError
from repro.core.installed import why_missing


def package(name: str, module: str) -> Any:
    """Import and return a module of a package of the extra.

    Raises:
        UsageError: it is not installed; the message says how to install it.
    """
    if reason := why_missing("papers", name, module):
        raise UsageError(reason)
    return import_module(module)
