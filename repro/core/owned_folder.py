"""Temporary folders that name their owner, so that those of processes that were killed can be removed."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from pathlib import Path

from repro.core import orphans

OWNER = "owner"
"""File in the folder with the identity of the process that made it."""


def name_owner(folder: Path) -> None:
    """Write this process's identity into a folder that it made."""
    (folder / OWNER).write_text(orphans.identity(os.getpid()))


def remove_orphaned(base: str | Path, prefix: str) -> None:
    """Remove folders of this user whose owner has ended without removing them, as after kill -9."""
    for path in Path(base).glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            state = path.lstat()
            if stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid() and orphans.is_over(_owner(path)):
                shutil.rmtree(path, ignore_errors=True)


def _owner(folder: Path) -> str:
    """Return the identity that a folder names; raises OSError if it names none."""
    handle = os.open(folder / OWNER, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        return os.read(handle, 100).decode(errors="replace")
    finally:
        os.close(handle)
