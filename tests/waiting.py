"""Waiting for what other processes and threads do: nobody knows how long that takes on a busy machine."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
LONG_SECONDS = 300.0
"""After this it will not happen: a hundred times as long as on a quiet machine, and less than what it is told from."""


def until(done: Callable[[], T], running: subprocess.Popen[str] | None = None) -> T:
    """Return what `done` gives as soon as that is true.

    Args:
        running: a process without which it cannot happen.
    """
    late = time.monotonic() + LONG_SECONDS
    while not (found := done()):
        assert time.monotonic() < late, "it did not happen"
        assert running is None or running.poll() is None or done(), running.communicate()
        time.sleep(0.02)
    return found
