"""One writer per run folder: a lock file that names its owner and is stale as soon as the owner has ended.

On one machine the kernel's lock on the file decides; it ends with the process, also after SIGKILL. The text in the file
is for people, and for a folder that two machines share, where the kernel's lock may be invisible.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

from repro.core import door, orphans
from repro.core.errors import OutputError

NAME = "run.lock"


class RunLock:
    """The lock of a run folder, held from `acquire` to `release`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self.stale: str = ""
        """The ended owner whose lock was found, in words; "" if there was none."""
        self._handle: int | None = None

    def acquire(self, force: bool = False) -> RunLock:
        """Take the lock; the lock of an owner that has ended is replaced.

        Args:
            force: replace the lock of an owner on another machine, too; from here it cannot be seen whether it runs.

        Raises:
            OutputError: another process writes this folder (which, and since when), or it cannot be written.
        """
        try:
            handle = self._locked()
        except OSError as error:
            raise OutputError(f"{self.path}: cannot be written: {error.strerror}") from error
        try:
            self._take_over(_read(handle), force)
            text = json.dumps({"pid": os.getpid(), "owner": orphans.identity(os.getpid()),
                               "host": socket.gethostname(), "since_ms": round(time.time() * 1e3)})
            os.ftruncate(handle, 0)
            os.pwrite(handle, text.encode(), 0)
            os.fsync(handle)
        except OSError as error:
            os.close(handle)
            raise OutputError(f"{self.path}: cannot be written: {error.strerror}") from error
        except OutputError:
            os.close(handle)
            raise
        self._handle = handle
        return self

    def _locked(self) -> int:
        """Open the lock file under its name with the kernel's lock on it."""
        while True:
            handle = door.open_handle(self.path, os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = _read(handle)
                os.close(handle)
                raise OutputError(f"{self.path.parent}: is being written by {_owner_text(owner)}; wait for its "
                                  "end, or end it") \
                    from None
            with contextlib.suppress(FileNotFoundError):
                if os.fstat(handle).st_ino == self.path.lstat().st_ino:
                    return handle
            os.close(handle)  # its owner removed it between the two calls

    def _take_over(self, owner: dict[str, Any], force: bool) -> None:
        if not owner:
            return
        if owner.get("host") != socket.gethostname() and not force:
            raise OutputError(f"{self.path.parent}: is locked by {_owner_text(owner)}, whose state cannot be seen from "
                              "here; if it no longer runs: --force")
        self.stale = _owner_text(owner)

    def release(self) -> None:
        """Remove the file and the lock; may be called twice."""
        handle, self._handle = self._handle, None
        if handle is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()
            os.close(handle)

    def __enter__(self) -> RunLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _read(handle: int) -> dict[str, Any]:
    """Read the owner of a lock; empty if the file is new, or was half written by an owner that ended."""
    try:
        found = json.loads(os.pread(handle, 4096, 0) or b"{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _owner_text(owner: dict[str, Any]) -> str:
    since = owner.get("since_ms")
    at = ""
    if isinstance(since, int) and 0 <= since < 1 << 47:  # the year 6429; far beyond it there are no dates
        at = time.strftime(" since %Y-%m-%d %H:%M:%S", time.localtime(since / 1e3))
    host = owner.get("host", socket.gethostname())
    # This machine's own name would go into the record, and with it into bundles.
    return f"process {owner.get('pid', '?')} on {'this machine' if host == socket.gethostname() else host}{at}"
