"""Memory: what this process holds and may still take, and errors that mean it ran out."""

from __future__ import annotations

import re
import resource
import sys
from collections.abc import Iterator
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


CGROUP = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


def available_memory() -> int:
    """Return bytes: the least of what the kernel calls available and what each control group has left."""
    import psutil

    return max(0, min([psutil.virtual_memory().available, *_left()]))


def _left() -> Iterator[int]:
    """Yield what is left below the limit of each control group of this process, of version 2 and 1."""
    for line in _lines(OWN):
        _, kinds, path = (*line.split(":", 2), "", "")[:3]
        if kinds and "memory" not in kinds.split(","):
            continue
        top, limit, used = (CGROUP / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes") if kinds else (
            CGROUP, "memory.max", "memory.current")
        own = top / path.lstrip("/")
        # In a container the path may be the host's, and only the top is visible.
        for folder in dict.fromkeys((own, *(item for item in own.parents if item.is_relative_to(top)), top)):
            with suppress(ValueError, IndexError):  # no such file, or "max"
                yield int(_lines(folder / limit)[0]) - int(_lines(folder / used)[0]) + _reclaimable(folder)


def _reclaimable(folder: Path) -> int:
    """Return the bytes of cached files that count as used and that the kernel drops first."""
    found = re.findall(r"^(?:total_)?inactive_file (\d+)$", "\n".join(_lines(folder / "memory.stat")), re.MULTILINE)
    return max(map(int, found), default=0)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return []


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
