"""Slow one rank down: for every second of processor time it uses, it is stopped for (factor - 1) seconds.

A small process next to the rank reads the rank's processor clock every few milliseconds and stops the rank by SIGSTOP
for the time owed. So all computation of the rank takes `factor` times as long, including its data loading and the
processor's share of its communication, for any engine and however busy the machine is; time spent waiting for other
ranks is not stretched. Threads that work at the same time count once. Owed time is paid in pauses of some milliseconds:
that is the resolution.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

from repro.core import orphans

QUANTUM_SECONDS = 0.004


def slow_down(factor: float) -> None:
    """Slow this process from now until it ends; it must have one thread."""
    rank = os.getpid()
    if os.fork():
        return
    orphans.signal_at_parent_exit(signal.SIGKILL)
    # The rank may have ended before the line above; the processor clock of an ended process raises OSError.
    with contextlib.suppress(OSError):
        if os.getppid() == rank:
            _pace(rank, factor)
    os._exit(0)


def _pace(pid: int, factor: float) -> None:
    clock = (~pid << 3) | 2  # the kernel's name for the processor clock of a whole process
    used, then, owed = time.clock_gettime(clock), time.monotonic(), 0.0
    while True:
        time.sleep(QUANTUM_SECONDS)
        now_used, now = time.clock_gettime(clock), time.monotonic()
        owed += (factor - 1) * min(now_used - used, now - then)
        used, then = now_used, now
        if owed < QUANTUM_SECONDS:
            continue
        os.kill(pid, signal.SIGSTOP)
        time.sleep(owed)
        os.kill(pid, signal.SIGCONT)
        then = time.monotonic()
        owed -= then - now
