"""Folder of manifests and converted files: writable, unlike many data folders."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "REPRO_DATA"


def store() -> Path:
    """Return the folder of all prepared data sets: `REPRO_DATA`, else `repro/data` in the user's cache (XDG)."""
    if given := os.environ.get(VARIABLE):
        return Path(given).expanduser().absolute()
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "repro" / "data"


def folder_of(name: str) -> Path:
    """Return the folder of one prepared data set."""
    return store() / name


def manifest_file(name: str) -> Path:
    return folder_of(name) / "manifest.json"
