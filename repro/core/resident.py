"""Resident memory of this process: the largest so far, and a new start of the count."""

from __future__ import annotations

import re
import resource
import sys
from contextlib import suppress
from pathlib import Path

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)
RESET = "5"
"""Value for clear_refs that sets the peak back to the memory resident now (proc(5))."""


def peak_bytes() -> int:
    """Return the largest resident memory of this process since `reset_peak`, interpreter and libraries included.

    Without Linux's files it is that of the whole life of the process.
    """
    with suppress(OSError):
        if found := PEAK.search(STATUS.read_text()):
            return int(found[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def reset_peak() -> None:
    """Forget the largest memory so far, where the system can."""
    with suppress(OSError):
        CLEAR.write_text(RESET)
