"""Folder for the sockets and files of a launch: in the temporary folder if its path is short enough for a socket."""

from __future__ import annotations

import os
import shutil
import tempfile
from multiprocessing import process
from pathlib import Path

from repro.core.errors import OutputError
from repro.core.orphans import name_owner, remove_orphaned

PREFIX = "repro-launch-"
LONGEST_SOCKET = 107
"""Longest path of a socket on Linux, in bytes; macOS has 103."""
SOCKET = len("/repro-launch-01234567/listener-01234567") + 4
"""What multiprocessing adds to the temporary folder, and the difference of macOS."""
SHORT = ("/tmp", "/var/tmp", "/dev/shm")  # each folder made there has mode 0700


class LaunchFolder:
    """A new folder of mode 0700 that names its owner; multiprocessing makes its sockets in it."""

    def __init__(self) -> None:
        """Make the folder, and remove those of owners that were killed.

        Raises:
            OutputError: no temporary folder is writable with a path that is short enough for a socket.
        """
        base = short_temporary()
        remove_orphaned(base, PREFIX)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
        self.restore()

    def restore(self) -> None:
        """Make it again if a fork server that was killed has removed it, and have multiprocessing use it."""
        self.path.mkdir(mode=0o700, exist_ok=True)
        name_owner(self.path)
        # multiprocessing has no public option for the folder of its sockets; its own would be in TMPDIR, and stay
        # there after kill -9.
        process.current_process()._config["tempdir"] = str(self.path)  # type: ignore[attr-defined]

    def remove(self) -> None:
        process.current_process()._config.pop("tempdir", None)  # type: ignore[attr-defined]
        shutil.rmtree(self.path, ignore_errors=True)


def short_temporary() -> str:
    """Return the temporary folder, or another if sockets in it would have paths that are too long.

    Raises:
        OutputError: none is writable.
    """
    wanted = tempfile.gettempdir()
    for place in (wanted, *SHORT):
        if len(os.fsencode(place)) + SOCKET <= LONGEST_SOCKET and os.access(place, os.W_OK | os.X_OK):
            return place
    raise OutputError(f"{wanted}: too long for a socket (at most {LONGEST_SOCKET - SOCKET} bytes), and none of "
                      f"{', '.join(SHORT)} is writable; set TMPDIR to a shorter path")
