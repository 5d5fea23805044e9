"""Makes one rank slow: for every second of processor time it uses, it is stopped for (factor - 1) seconds.

A small process beside the rank reads the rank's processor clock every few milliseconds and stops the rank by SIGSTOP
for what it owes. So all that the rank computes takes `factor` times as long, its data loading and the processor's share
of its communication included, whatever engine runs in it and however busy the machine is; time spent waiting for other
ranks is not stretched. Several threads that work at once count once. Owed time is paid in pauses of some milliseconds:
that is the resolution.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

from repro.core import child_process

QUANTUM_SECONDS = 0.004


def slow_down(factor: float) -> None:
    """Slow this process, which must have one thread, from now on; ends with it."""
    rank = os.getpid()
    if os.fork():
        return
    child_process.at_its_end(signal.SIGKILL)
    # The rank may have ended before the line above; processor clocks of processes that are gone raise OSError.
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
