"""Signal to a process when its parent ends."""

from __future__ import annotations

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1


def signal_at_parent_exit(number: signal.Signals) -> None:
    """Have the kernel send this process a signal when the process or thread that forked it ends (Linux, prctl(2))."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number))
