"""The environment that every test, and every driver of faults, may rely on."""

from __future__ import annotations

import gc
import os
import shutil
import signal
from pathlib import Path

# A shell without job control starts what it puts into the background with Ctrl-C ignored, and all children inherit
# that; tests that send it would have no effect.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests run side by side, so their runs would wait for each other; test_timing_lock.py switches the lock on again.
os.environ.setdefault("REPRO_TIMING_LOCK", "off")

# Thousands of tests and torch's modules stay for the whole session: looked through at every full collection, they cost
# a tenth of the time.
gc.set_threshold(50_000, 20, 100)


def _available_memory() -> int:
    """Return the bytes that new processes may use; without psutil, as the smoke test begins without any package."""
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) << 10


# Tests write thousands of runs, whose files wait for the disk; in memory, of which they need 200 MB, they take half the
# time. Some start programs there, which the mount of a container may forbid.
SHARED, ROOM = Path("/dev/shm"), 2 << 30
if (os.access(SHARED, os.W_OK) and not os.statvfs(SHARED).f_flag & os.ST_NOEXEC
        and min(shutil.disk_usage(SHARED).free, _available_memory() - ROOM) >= ROOM):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(SHARED))

# No test writes to the user's state, or depends on what earlier ones asked: no folder can be made below a device.
os.environ["XDG_STATE_HOME"] = os.devnull
