"""Memory: the most that this process held, and errors that mean it ran out."""

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


PHRASES = ("out of memory", "outofmemory", "memoryerror", "can't allocate memory", "not enough memory",
           "cannot allocate memory", "bad_alloc", "alloc_failed")
"""Of CUDA and its libraries, Python, torch's CPU allocator and the C library, in lower case: an exception's type alone
does not tell."""


def says_out_of_memory(text: str) -> bool:
    """Return True if a message or the reason of a rank's end says so."""
    lower = text.lower()
    return any(phrase in lower for phrase in PHRASES)


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if an allocation failed."""
    if isinstance(error, MemoryError) or type(error).__name__ in ("OutOfMemoryError", "OutOfMemory"):
        return True
    return isinstance(error, RuntimeError | OSError) and says_out_of_memory(str(error))
