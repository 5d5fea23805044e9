"""Time and memory of opening a record in Python: `repro.open`, `.trials`, `.steps`, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

PROGRAM = """
import json, resource, sys, time
began = time.perf_counter(), time.process_time()
found = []
def took(what):
    global began
    now = time.perf_counter(), time.process_time()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    found.append((what, now[0] - began[0], now[1] - began[1], peak))
    began = time.perf_counter(), time.process_time()
import repro
took("import repro")
import pandas, repro.api.opened
took("pandas and what records need")
run = repro.open(sys.argv[1])
took("repro.open")
count = len(run.trials)
took(f".trials, {count} rows")
count = len(run.steps)
took(f".steps, {count} rows")
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True)
class Opened:
    """(what, seconds, seconds of the processor, MiB of the process so far)."""

    rows: tuple[tuple[str, float, float, float], ...]

    def text(self) -> str:
        return "\n".join(f"{what:<32} {wall:7.2f} s, {busy:6.2f} s of the processor, {peak:6.0f} MiB"
                         for what, wall, busy, peak in self.rows)


def measure(run: Path) -> Opened:
    """Open the record `run` once; the files should be in the cache of the file system."""
    ended = subprocess.run([sys.executable, "-c", PROGRAM, str(run)], capture_output=True, text=True, check=True)
    return Opened(tuple(tuple(row) for row in json.loads(ended.stdout)))
