"""A program under `repro.watch`: started, read while it runs, and what it said."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from repro.program.observation import Observation
from repro.program.watch_reader import WatchPipe, WatchReader

QUIET = {"TRANSFORMERS_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1",
         "OMP_NUM_THREADS": "1"}
"""No framework may look for anything outside the machine."""


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """That of a program that torchrun did not start."""
    return {name: value for name, value in os.environ.items() if name not in ("RANK", "REPRO_WATCH")} | {**more}


def program(*arguments: str, code: int = 0, folder: Path, metric: str | None = None) -> list[Observation]:
    """Run Python with these arguments until it ends with `code`; return all observations that count."""
    with WatchPipe(folder) as pipe, Path(folder, "output.txt").open("w+") as output:
        running = subprocess.Popen([sys.executable, *arguments], stdout=output, stderr=output, cwd=folder,
                                   env=environment(QUIET | pipe.environment))
        try:
            reader, lines = WatchReader(metric), pipe.lines()
            found: list[Observation | None] = []
            while lines or running.poll() is None:
                select.select([pipe], [], [], 0.01)
                lines = pipe.lines()
                found += map(reader.take, lines)
        finally:
            running.kill()
            running.wait()
        assert running.returncode == code, Path(folder, "output.txt").read_text()[-3000:]
        if code == 0:
            reader.close()
    return [item for item in found if item is not None]
