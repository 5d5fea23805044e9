"""Packages that optimizers come from and that need not be installed."""

from __future__ import annotations

from importlib.util import find_spec


def why_missing(package: str, module: str) -> str | None:
    """Return why an optimizer of `package` cannot run; None if `module` can be imported."""
    if find_spec(module) is not None:
        return None
    return f"it is of the package {package}, which is not installed: pip install 'repro-harness[optimizers]'"
