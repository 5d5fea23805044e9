"""A hash of what decides the facts and pages of a board, so that a cache made by other code is not used."""

from __future__ import annotations

import hashlib
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import repro
from repro.suite.identity import METHOD

PACKAGES = ("repro", "repro.reporters", "repro.templates")
LIBRARIES = ("numpy", "scipy", "pydantic", "jinja2")


def code_digest() -> str:
    """Return a hash of version, method, every file of this package, and the libraries that compute and render."""
    digest = hashlib.sha256(f"{repro.__version__} {METHOD} {sys.version} {_libraries()}".encode())
    for name in PACKAGES:
        spec = find_spec(name)
        root = Path(next(iter(spec.submodule_search_locations or ()))) if spec else Path()
        for path in sorted(root.rglob("*")) if spec else ():
            if path.is_file() and path.suffix != ".pyc":
                digest.update(f"{name} {path.relative_to(root).as_posix()} {path.stat().st_size} ".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()[:32]


def _libraries() -> str:
    found = []
    for name in LIBRARIES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"{name} unknown")
    return ", ".join(found)
