"""`repro` as a process of its own, as a user starts it."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tests.in_process import check_json

ROOT = Path(__file__).resolve().parents[1]
PLUGINS = ROOT / "tests" / "plugins"
PORTS = range(20_000, 32_768)


class Ended(NamedTuple):
    """What a command left."""

    code: int
    out: str
    error: str


def environment(**more: str) -> dict[str, str]:
    """Environment of processes that use this checkout's code and `python`, one thread each, and send no telemetry."""
    return {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true", "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", **more}


def start(folder: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    """Start `repro ARGUMENTS` in a folder; both outputs are pipes."""
    return subprocess.Popen([sys.executable, "-m", "repro", *arguments], cwd=folder, env=environment(**variables),
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def command(folder: Path, *arguments: str, **variables: str) -> Ended:
    """Run `repro ARGUMENTS` in a folder to its end; never a traceback, and JSON as its schema says."""
    process = start(folder, *arguments, **variables)
    try:
        out, error = process.communicate(timeout=3600)
    except BaseException:
        process.kill()
        raise
    assert "Traceback" not in error and "internal error" not in error, error
    check_json(arguments, out)
    return Ended(process.returncode, out, error)


def git(folder: Path, *arguments: str) -> str:
    """Run git in a folder, as somebody with a name; return what it prints."""
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    return subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True,
                          text=True).stdout.strip()


def free_port() -> int:
    """Return a free TCP port outside Linux's range of ephemeral ports: another process might be given one of those
    before the server listens."""
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError(f"no free port in {PORTS}")
