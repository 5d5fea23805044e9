"""Orphans: processes that outlived their run, found by a mark in their environment, and folders of killed processes.

Nothing that a launcher makes needs removal by name: namespaces, bridges and links exist only as long as the processes
in them. What can remain after kill -9 is a process that a rank started and detached; it also keeps its node's
namespace. Every process of a run inherits OWNER = pid and start time of the launching process, so that a recycled pid
is not taken for the owner.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import stat
import sys
import time
from collections.abc import Sequence
from pathlib import Path

OWNER = "REPRO_OWNER"


def identity(pid: int) -> str:
    """Return the identity of a process as "pid:start:place"; start: clock ticks after boot, empty if unknown; place:
    the namespaces in which both hold, since containers may share a folder but neither pids nor clocks.
    """
    return f"{pid}:{_start(pid)}:{_place()}"


def find() -> list[int]:
    """Return the processes of this user whose run has ended; excludes live runs, other users and containers."""
    if sys.platform != "linux":
        return []
    import psutil

    found: list[int] = []
    for process in psutil.process_iter():
        if process.pid == os.getpid() or not _ours(process.pid):
            continue
        with contextlib.suppress(psutil.Error, OSError):
            owner = process.environ().get(OWNER)
            if owner and is_over(owner) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


def end(pids: Sequence[int], seconds: float = 5.0) -> list[int]:
    """Kill these processes and wait until they have ended; return those that remain."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    late = time.monotonic() + seconds
    while (remaining := [pid for pid in pids if _runs(pid)]) and time.monotonic() < late:
        time.sleep(0.02)
    return remaining


def is_over(owner: str) -> bool:
    """Return True if the process with this identity has ended; False if it is this one, cannot be seen from here, or
    is no identity.
    """
    pid, start, place = (*owner.split(":"), "", "")[:3]
    if not pid.isdecimal() or int(pid) == os.getpid() or place not in ("", _place()):
        return False
    return _start(int(pid)) != start


def _ours(pid: int) -> bool:
    """Return True if the process is of this user and in this pid namespace, not in a container."""
    try:
        same_user = Path(f"/proc/{pid}").stat().st_uid == os.geteuid()
        return same_user and Path(f"/proc/{pid}/ns/pid").readlink() == Path("/proc/self/ns/pid").readlink()
    except OSError:
        return False


def _place() -> str:
    """Return the pid and time namespaces of this process; "" if the kernel does not say."""
    found = []
    for kind in ("pid", "time"):
        with contextlib.suppress(OSError):
            found.append(str(Path(f"/proc/self/ns/{kind}").stat().st_ino))
    return ".".join(found)


def _start(pid: int) -> str:
    try:
        # The command's name, in brackets, may itself contain blanks and brackets.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _runs(pid: int) -> bool:
    import psutil

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


OWNER_FILE = "owner"
"""File in a temporary folder with the identity of the process that made it."""


def name_owner(folder: Path) -> None:
    """Write this process's identity into a folder that it made."""
    (folder / OWNER_FILE).write_text(identity(os.getpid()))


def remove_orphaned(base: str | Path, prefix: str) -> None:
    """Remove folders of this user whose owner has ended without removing them, as after kill -9."""
    for path in Path(base).glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            state = path.lstat()
            if stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid() and is_over(_owner_of(path)):
                shutil.rmtree(path, ignore_errors=True)


def _owner_of(folder: Path) -> str:
    """Return the identity that a folder names; raises OSError if it names none."""
    handle = os.open(folder / OWNER_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        return os.read(handle, 100).decode(errors="replace")
    finally:
        os.close(handle)


_PR_SET_PDEATHSIG = 1


def signal_at_parent_exit(number: signal.Signals) -> None:
    """Have the kernel send this process a signal when the process or thread that forked it ends (Linux, prctl(2))."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number))
