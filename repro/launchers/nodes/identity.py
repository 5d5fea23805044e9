"""What must be equal on all nodes of a run, because ranks run the same code or none of its figures means anything."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import repro

PACKAGES = ("torch", "deepspeed", "numpy")


def identity() -> dict[str, str]:
    """Return name -> version, the code of this package included."""
    return {"repro": repro.__version__, "code of repro": _code(), "Python": platform.python_version(),
            **{name: _version(name) for name in PACKAGES}}


def difference(there: Mapping[str, str], here: Mapping[str, str]) -> str:
    """Return what differs, in one line; "" if nothing does."""
    return ", ".join(f"{name} {there.get(name, 'none')} there and {here.get(name, 'none')} here"
                     for name in dict.fromkeys((*here, *there)) if there.get(name) != here.get(name))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


@cache
def _code() -> str:
    root, found = Path(repro.__file__).parent, hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        found.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]
