"""A command of `repro` in a separate process, with its time and memory."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from repro.core.errors import ReproError
from repro.core.frozen import Frozen


class CommandCost(Frozen):
    """Time and memory of one command."""

    command: str
    seconds: float
    cpu_seconds: float
    """Processor time of all its processes, in their own code and in the kernel's."""
    peak_mebibytes: float
    """Memory of its largest process."""


def timed(name: str, arguments: Sequence[str], says: str = "") -> CommandCost:
    """Run `repro` once.

    Raises:
        ReproError: it failed, or its output does not have the text `says`.
    """
    began = time.perf_counter()
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen([sys.executable, "-m", "repro", *arguments], stdout=said)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)  # already waited for
        said.seek(0)
        if process.returncode or says not in said.read().decode():
            raise ReproError(f"repro {arguments[0]} ended with {process.returncode}"
                             + (f" and did not say {says!r}" if says else ""))
    return CommandCost(command=name, seconds=seconds, cpu_seconds=usage.ru_utime + usage.ru_stime,
                       peak_mebibytes=mebibytes(usage))


def mebibytes(usage: resource.struct_rusage) -> float:
    """Return the largest resident size, which the kernel gives in bytes or in KiB."""
    return usage.ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)
