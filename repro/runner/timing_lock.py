"""Only one run at a time is timed on a machine, of any user: two at once would slow each other down.

The lock is a socket with a name in the kernel's own (abstract) namespace: one process can hold the name, of whatever
user; it ends with its process, also after SIGKILL, and leaves no file. A scheduler's job has no such lock, because the
scheduler gives each job separate processors. Containers with a separate network do not see it.
"""

from __future__ import annotations

import errno
import os
import pwd
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from repro.core.errors import OutputError, UsageError

VARIABLE = "REPRO_TIMING_LOCK"
NAME = "\0repro-timing"
JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")
PAUSE_SECONDS = 0.2


@contextmanager
def only_run_that_times(show: Callable[[str], None]) -> Iterator[float]:
    """Hold the machine's timing lock; while another run holds it, say so once and wait. Gives the seconds waited.

    `REPRO_TIMING_LOCK=off` does without, which the record shows among the settings.

    Args:
        show: receives the line that names the other run.

    Raises:
        UsageError: the variable has another value.
        OutputError: the kernel refuses the socket.
    """
    stated = os.environ.get(VARIABLE, "")
    if stated not in ("", "off"):
        raise UsageError(f"{VARIABLE}={stated}: must be `off`, or not set")
    if stated or any(name in os.environ for name in JOBS):
        yield 0.0
        return
    begun = time.monotonic()
    with socket.socket(socket.AF_UNIX) as lock:
        waits = not _taken(lock)
        if waits:
            show(f"waiting for another run that times its trials on this machine{_owner()}; Ctrl-C ends the wait; "
                 f"to run without the lock, set {VARIABLE}=off")
            while not _taken(lock):
                time.sleep(PAUSE_SECONDS)
        lock.listen()  # so that others can ask who holds it
        yield time.monotonic() - begun if waits else 0.0


def _taken(lock: socket.socket) -> bool:
    try:
        lock.bind(NAME)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False
        raise OutputError(f"the lock that keeps two runs from timing at once: {error.strerror}; to run without "
                          f"it, set {VARIABLE}=off") from error
    return True


def _owner() -> str:
    """Return process and user of the holder, as the kernel knows them; "" if it has just ended."""
    with socket.socket(socket.AF_UNIX) as asked:
        asked.setblocking(False)
        try:
            asked.connect(NAME)
            pid, user, _ = struct.unpack("3i", asked.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        except OSError:
            return ""
    try:
        return f" (pid {pid} of {pwd.getpwuid(user).pw_name})"
    except KeyError:
        return f" (pid {pid} of user {user})"
