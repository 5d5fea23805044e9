"""Folder for the sockets and files of a launch: in the temporary folder if its path is short enough for a socket."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from multiprocessing import process
from pathlib import Path

from repro.core import orphans
from repro.core.errors import OutputError

PREFIX = "repro-launch-"
OWNER = "owner"
"""File in the folder with the identity of the process that made it."""
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
        remove_orphaned(base)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
        self.restore()

    def restore(self) -> None:
        """Make it again if a fork server that was killed has removed it, and have multiprocessing use it."""
        self.path.mkdir(mode=0o700, exist_ok=True)
        (self.path / OWNER).write_text(orphans.identity(os.getpid()))
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


def remove_orphaned(base: str) -> None:
    """Remove folders of this user whose owner has ended without removing them, as after kill -9."""
    for path in Path(base).glob(f"{PREFIX}*"):
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
