"""One run at a time times its trials on a machine, whoever started it: two at once would slow each other down.

The kernel's lock on a file decides; it ends with its process, also after SIGKILL. A scheduler's job has no such lock,
because the scheduler gives each job processors of its own. Containers do not see each other's file.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from repro.core.errors import OutputError, UsageError

VARIABLE = "REPRO_TIMING_LOCK"
PLACE = Path("/run/lock/repro-timing.lock")
ELSEWHERE = Path("/tmp/repro-timing.lock")
"""Where `PLACE` has no folder, or only root may write there."""
JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")
PAUSE_SECONDS = 0.2


@contextmanager
def only_run_that_times(show: Callable[[str], None]) -> Iterator[None]:
    """Hold the machine's timing lock; while another run holds it, say so once and wait.

    `REPRO_TIMING_LOCK=off` does without, which the record shows among the settings.

    Args:
        show: receives the line that names the other run.

    Raises:
        UsageError: the variable has another value.
        OutputError: the lock file cannot be opened.
    """
    stated = os.environ.get(VARIABLE, "")
    if stated not in ("", "off"):
        raise UsageError(f"{VARIABLE}={stated}: must be `off`, or not set")
    if stated or any(name in os.environ for name in JOBS):
        yield
        return
    handle = _opened(PLACE, ELSEWHERE)
    try:
        if not _taken(handle):
            show(f"waiting for another run that times its trials on this machine{_owner(handle)}; Ctrl-C ends the wait")
            while not _taken(handle):
                time.sleep(PAUSE_SECONDS)
        with contextlib.suppress(OSError):  # opened for reading: it is another user's file
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"pid {os.getpid()} of {_user()}, since {time.strftime('%H:%M:%S')}".encode(), 0)
        yield
    finally:
        os.close(handle)


def _opened(*places: Path) -> int:
    """Open the first place that exists or can be made; its text is for people, so reading is enough.

    Raises:
        OutputError: none can be.
    """
    problem = ""
    for place in places:
        # Without O_CREAT first: the kernel refuses that for files of others in a folder that all may write.
        for flags in (os.O_RDWR, os.O_RDONLY, os.O_RDWR | os.O_CREAT | os.O_EXCL):
            try:
                handle = os.open(place, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
            except OSError as error:
                problem = f"{place}: {error.strerror}"
                continue
            if flags & os.O_CREAT:
                os.fchmod(handle, 0o666)  # whatever the umask is
            return handle
    raise OutputError(f"{problem}; it is the lock that keeps two runs from timing at once; {VARIABLE}=off does without")


def _taken(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _owner(handle: int) -> str:
    text = os.pread(handle, 200, 0).decode("utf-8", "replace")
    return f" ({text})" if text.isprintable() and text else ""


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
