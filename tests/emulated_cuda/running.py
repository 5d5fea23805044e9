"""`repro` in the emulated environment, as a user of a machine with GPUs starts it."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from tests.commands import Ended
from tests.emulated_cuda import environment

LIMIT_SECONDS = 1800


def start(folder: Path, *arguments: str, devices: int = 2, **variables: str) -> subprocess.Popen[str]:
    """Start the environment's Python with arguments, in a process group of its own; both outputs are pipes."""
    return subprocess.Popen([environment.python(), *arguments], cwd=folder, text=True, start_new_session=True,
                            env=environment.variables(devices, **variables), stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def finish(process: subprocess.Popen[str]) -> Ended:
    try:
        out, error = process.communicate(timeout=LIMIT_SECONDS)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return Ended(process.returncode, out, error)


def run(folder: Path, *arguments: str, devices: int = 2, **variables: str) -> Ended:
    """Run the environment's Python to its end."""
    return finish(start(folder, *arguments, devices=devices, **variables))


def repro(folder: Path, *arguments: str, devices: int = 2, **variables: str) -> Ended:
    """Run `repro ARGUMENTS` to its end; never a traceback."""
    ended = run(folder, "-m", "repro", *arguments, devices=devices, **variables)
    assert "Traceback" not in ended.error and "internal error" not in ended.error, ended.error[-3000:]
    return ended
