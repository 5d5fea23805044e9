"""The `repro` command in a process of its own, with this checkout's code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
WITH_PLUGINS = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "plugins")])
"""PYTHONPATH of suites that name the plug-ins of the tests."""


def environment(**variables: str) -> dict[str, str]:
    """Return the variables of such a process: one thread a rank, and `python` is the one that runs the tests."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", **variables}


def start(folder: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    """Start the command in a folder."""
    return subprocess.Popen(
        [sys.executable, "-m", "repro", *arguments], cwd=folder, env=environment(**variables), text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def run(folder: Path, *arguments: str, limit: float = 300, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder to its end, at most `limit` seconds."""
    with start(folder, *arguments, **variables) as process:
        try:
            out, error = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, error)
