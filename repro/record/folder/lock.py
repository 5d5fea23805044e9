"""One writer per run folder: a lock file that names its owner and is stale as soon as the owner has ended.

On one computer the kernel's lock on the file decides; it ends with the process, also after SIGKILL. In a folder that
several computers share that lock may be invisible (NFS) or missing (Lustre), so the owner also counts beats in the
file. A process that finds the lock of another computer watches it, and takes it over if no beat comes: the owner's job
has ended, or its host is lost. An owner that was only suspended notices this at its next beat, and ends.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from repro.core import door, orphans
from repro.core.errors import Exit, OutputError
from repro.record.environment.placement import JOBS, boot_id

NAME = "run.lock"
BEAT_SECONDS = 5.0
WATCH_SECONDS = 40.0
"""Without a beat for so long an owner on another computer is gone; NFS shows a beat at the latest when its file is
opened again."""
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
"""Of file systems without locks: Lustre mounted without `flock`, NFS without its lock daemon."""
MOST_LOOKS = 5
"""Times the looks that are needed, of which some may fail."""


class RunLock:
    """The lock of a run folder, held from `acquire` to `release`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self.stale: str = ""
        """The ended owner whose lock was found, in words; "" if there was none."""
        self._handle: int | None = None
        self._beats_alone = False
        """The file system has no locks, so that beats tell of this computer's processes, too."""
        self._over = threading.Event()
        self._owner: dict[str, Any] = {}
        self._beats = threading.Thread()

    def acquire(self, tell: Callable[[str], None] = lambda _: None) -> RunLock:
        """Take the lock; the lock of an owner that has ended is replaced.

        Args:
            tell: is given a line if an owner on another computer has to be watched first.

        Raises:
            OutputError: another process writes this folder (which, and since when), or it cannot be written.
        """
        while True:
            try:
                handle = self._locked()
            except OSError as error:
                raise OutputError(f"{self.path}: cannot be written: {error.strerror}") from error
            try:
                self._take_over(_read(handle), tell)
                if self._is_named(handle):
                    self._owner = _this_process()
                    _write(handle, self._owner)
                    break
            except OSError as error:
                os.close(handle)
                raise OutputError(f"{self.path}: cannot be written: {error.strerror}") from error
            except BaseException:  # refused, or Ctrl-C while it was watched
                os.close(handle)
                raise
            os.close(handle)  # its owner removed it while it was watched
        self._handle = handle
        self._beats = threading.Thread(target=self._beat, args=(handle,), name="repro-lock", daemon=True)
        self._beats.start()
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
                raise self._refusal(owner) from None
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
                self._beats_alone = True
            if self._is_named(handle):
                return handle
            os.close(handle)  # its owner removed it between the two calls

    def _refusal(self, owner: dict[str, Any]) -> OutputError:
        return OutputError(f"{self.path.parent}: is being written by {_owner_text(owner)}; wait for its end, or end it")

    def _is_named(self, handle: int) -> bool:
        """Return whether an open file is the one that has the lock's name."""
        with contextlib.suppress(OSError):
            return os.fstat(handle).st_ino == self.path.lstat().st_ino
        return False

    def _take_over(self, owner: dict[str, Any], tell: Callable[[str], None]) -> None:
        """Replace the owner that the file names; one on another computer only if no beat of it comes."""
        if not owner:
            return
        here = owner["boot"] == boot_id() if owner.get("boot") and boot_id() else \
            owner.get("host") == socket.gethostname()
        if not here or self._beats_alone:
            tell(f"{self.path.parent} is locked by {_owner_text(owner)}; watching for {WATCH_SECONDS:g} s whether it "
                 "still runs")
            self._watch(owner)
        self.stale = _owner_text(owner, named=False)

    def _watch(self, owner: dict[str, Any]) -> None:
        """Look whether the file changes; looks count, not seconds, as one may wait long for a server."""
        pause, seen = BEAT_SECONDS / 5, 0
        for _ in range(MOST_LOOKS * round(WATCH_SECONDS / pause)):
            time.sleep(pause)
            if not self.path.exists():
                return
            now = _read_at(self.path)
            if now and now != owner:
                raise self._refusal(now)
            seen += bool(now)
            if seen * pause >= WATCH_SECONDS:
                return
        raise OutputError(f"{self.path}: cannot be read, so whether its owner still runs is not known")

    def _beat(self, handle: int) -> None:
        """Count beats in the file until the lock is released; end the process if it is another's by then."""
        while not self._over.wait(BEAT_SECONDS):
            found = _read_at(self.path)
            if found and not self._is_own(found):
                sys.stderr.write(f"error: {self.path.parent}: was taken over by {_owner_text(found)} while this "
                                 "process did not run; it ends and writes no more\n")
                sys.stderr.flush()
                os._exit(Exit.TRIAL_FAILED)
            self._owner["beat"] += 1
            with contextlib.suppress(OSError):  # a full disk
                _write(handle, self._owner)

    def _is_own(self, found: dict[str, Any]) -> bool:
        return found | {"beat": 0} == self._owner | {"beat": 0}

    def release(self) -> None:
        """Remove the file and the lock; may be called twice."""
        self._over.set()
        handle, self._handle = self._handle, None
        if handle is None:
            return
        self._beats.join(BEAT_SECONDS)
        if self._is_own(_read_at(self.path)):
            with contextlib.suppress(OSError):
                self.path.unlink()
        if not self._beats.is_alive():  # it would write into another file of this number
            os.close(handle)

    def __enter__(self) -> RunLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _this_process() -> dict[str, Any]:
    found = {"pid": os.getpid(), "owner": orphans.identity(os.getpid()), "host": socket.gethostname(),
             "boot": boot_id(), "since_ms": round(time.time() * 1e3), "beat": 0}
    job = next((os.environ[name] for name in JOBS if name in os.environ), "")
    return found | ({"job": job} if job else {})


def _write(handle: int, owner: dict[str, Any]) -> None:
    text = json.dumps(owner).encode()
    os.pwrite(handle, text, 0)
    os.ftruncate(handle, len(text))
    os.fsync(handle)


def _read_at(path: Path) -> dict[str, Any]:
    """Open the file again and return its owner; {} if that fails. NFS may show former content of an open file."""
    try:
        handle = door.open_handle(path, os.O_RDONLY)
    except OSError:
        return {}
    try:
        return _read(handle)
    except OSError:  # a stale handle of NFS, an error of its server
        return {}
    finally:
        os.close(handle)


def _read(handle: int) -> dict[str, Any]:
    """Read the owner of a lock; empty if the file is new, or was half written by an owner that ended."""
    try:
        found = json.loads(os.pread(handle, 4096, 0) or b"{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _owner_text(owner: dict[str, Any], named: bool = True) -> str:
    """Return process, computer, job and since when; for the record, `named` is False: no name goes into it."""
    since = owner.get("since_ms")
    at = ""
    if isinstance(since, int) and 0 <= since < 1 << 47:  # the year 6429; far beyond it there are no dates
        at = time.strftime(" since %Y-%m-%d %H:%M:%S", time.localtime(since / 1e3))
    host = owner.get("host", socket.gethostname())
    # This machine's own name would go into the record, and with it into bundles.
    job = f" in job {owner['job']}" if owner.get("job") else ""
    where = "this machine" if host == socket.gethostname() else host if named else "another computer"
    return f"process {owner.get('pid', '?')} on {where}{job}{at}"
