"""The place where bundles are unpacked: in memory if there is room. Making and removing a hundred small files on a disk
takes as long as verifying them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from repro.bundle.archive import most_bytes
from repro.core.memory import available_memory
from repro.core.orphans import name_owner, remove_orphaned

MEMORY = Path("/dev/shm")
PREFIX = "repro-board-"
CHOSEN = ("TMPDIR", "TEMP", "TMP")
"""Variables by which a user chooses the place of temporary files."""


@dataclass(frozen=True, slots=True)
class Scratch:
    """A folder in memory, for processes that unpack side by side."""

    folder: Path | None
    """None: there is none, or the user chose another place."""
    sharers: int
    """Processes that use it at the same time."""

    def place_of(self, bundle: Path) -> Path | None:
        """Return the folder to unpack a bundle in; None: the system's, if it might not fit."""
        if self.folder is None or not bundle.is_file():
            return None
        with suppress(OSError):
            room = min(shutil.disk_usage(self.folder).free, available_memory() // 2)
            if room >= self.sharers * most_bytes(bundle.stat().st_size):
                return self.folder
        return None


@contextmanager
def scratch(sharers: int) -> Iterator[Scratch]:
    """Make a folder in memory, and remove it with all that a killed process left there; also remove the folders of
    builds that were killed.
    """
    if not MEMORY.is_dir() or not os.access(MEMORY, os.W_OK) or any(os.environ.get(name) for name in CHOSEN):
        yield Scratch(None, sharers)
        return
    remove_orphaned(MEMORY, PREFIX)
    with tempfile.TemporaryDirectory(prefix=PREFIX, dir=MEMORY) as place:
        name_owner(Path(place))
        yield Scratch(Path(place), sharers)
