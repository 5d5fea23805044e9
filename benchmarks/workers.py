"""Throughput over a volume while workers come and go: tasks a second beside the number of live workers."""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean
from typing import Any

from repro import stats
from repro.core.errors import TrialError
from repro.core.frozen import Frozen

SETTLE_SECONDS = 3.0
"""After a change of the workers: a new one loads its modules, and a killed one's task comes back."""
VISIBILITY = 2.0
CHUNK, OVERLAP = 8, 2
SEED = 20190423


class Phase(Frozen):
    """Some seconds with a constant number of workers."""

    workers: int
    tasks: int
    seconds: float
    begun: float
    """Seconds since the start of the round."""

    @property
    def rate(self) -> float:
        return self.tasks / self.seconds


class LiveWorkers(Frozen):
    """Phases of all rounds."""

    rounds: tuple[tuple[Phase, ...], ...]
    delay: float

    def text(self) -> str:
        lines = [f"throughput with workers that come and go: each task sleeps {self.delay:g} s (emulated computation); "
                 f"{len(self.rounds)} rounds, order of phases drawn, workers ended by SIGKILL"]
        for workers in sorted({phase.workers for phase in self.rounds[0]}):
            rates = [phase.rate for each in self.rounds for phase in each if phase.workers == workers]
            single = [phase.rate for each in self.rounds for phase in each if phase.workers == 1]
            shown = f"  {workers} live: {mean(rates):.2f} tasks/s"
            if len(rates) > 1:
                ratio, ends = stats.paired_ratio(rates, single)
                shown += (f", {ratio:.2f} x one worker ({ends.level:.0%} interval {ends.low:.2f} to {ends.high:.2f}, "
                          f"{len(rates)} rounds)" if workers > 1 else f" ({len(rates)} rounds)")
            lines.append(shown)
        return "\n".join([*lines, "  emulated computation on this machine, now"])


def measure(rounds: int = 6, seconds: float = 5.0, delay: float = 0.25, most: int = 4) -> LiveWorkers:
    """Run `rounds` volumes through real workers (`repro volume run`); in each, 1 to `most` workers live in turn.

    Args:
        seconds: length of a phase, after the time in which it settles.
        delay: sleep of a task, seconds.
    """
    rng = random.Random(SEED)
    found = []
    for _ in range(rounds):
        order = list(range(1, most + 1))
        rng.shuffle(order)
        with tempfile.TemporaryDirectory(prefix="repro-bench-") as folder:
            found.append(_round(Path(folder), order, seconds, delay))
    return LiveWorkers(rounds=tuple(found), delay=delay)


def _round(folder: Path, order: list[int], seconds: float, delay: float) -> tuple[Phase, ...]:
    import numpy as np
    import zarr

    from repro.papers.chunkflow.grid import Grid
    from repro.papers.chunkflow.queues import open_queue
    from repro.papers.chunkflow.store import Output

    # More tasks than the phases can do, so that the queue is never empty.
    enough = 1 + int(sum(order) * (seconds + SETTLE_SECONDS) / delay)
    grid = Grid((CHUNK, CHUNK, CHUNK + (CHUNK - OVERLAP) * enough), (CHUNK,) * 3, (OVERLAP,) * 3)
    values: Any = np.ones(grid.shape, dtype=np.float32)
    zarr.save_array(str(folder / "v"), values)
    queue = open_queue(f"sqlite:{folder}/t.db", make=True)
    queue.add(Output.create(folder / "out", grid, "float32").tasks())
    command = [sys.executable, "-m", "repro", "volume", "run", "--queue", "sqlite:t.db",
               "--visibility", str(VISIBILITY), "read", "v", "infer", "--net", "identity", "delay", "--seconds",
               str(delay), "blend", "write", "out"]
    workers: list[subprocess.Popen[bytes]] = []
    phases: list[Phase] = []
    start = time.monotonic()
    try:
        for count in order:
            while len(workers) > count:
                workers[-1].kill()
                workers.pop().wait()
            while len(workers) < count:
                workers.append(subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL))
            time.sleep(SETTLE_SECONDS)
            before, begun = queue.counts().open, time.monotonic()
            time.sleep(seconds)
            after, ended = queue.counts().open, time.monotonic()
            if any(each.poll() is not None for each in workers):
                raise TrialError("a worker of the benchmark ended by itself; its line above says why")
            phases.append(Phase(workers=count, tasks=before - after, seconds=ended - begun, begun=begun - start))
    finally:
        for each in workers:
            each.kill()
            each.wait()
        queue.close()
    return tuple(phases)
