"""What the kernel does for a process when the one that started it ends, however that one ends."""

from __future__ import annotations

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1


def at_its_end(number: signal.Signals) -> None:
    """Be sent this signal when the process, or thread, ends that this process was forked from (Linux, prctl(2))."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number))
