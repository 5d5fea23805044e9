"""Packages of the extras in pyproject.toml, which need not be installed."""

from __future__ import annotations

from importlib.util import find_spec


def why_missing(extra: str, package: str, module: str) -> str | None:
    """Return what to install if `module` of a package of an extra cannot be imported; None if it can."""
    if find_spec(module) is not None:
        return None
    return f"package {package} is not installed: pip install 'repro-harness[{extra}]'"
