"""Cost of a trial in addition to training: a 2-rank trial of one step over a bare `torchrun` of the same work."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from repro.bench.harness.outcome import BenchOutcome, outcome
from repro.bench.harness.trial import bench_trial, preload, run_trial
from repro.core import registry
from repro.core.errors import TrialError

LIMIT = 0.30


def measure(pairs: int) -> BenchOutcome:
    """Measure the seconds from the request to the end of all processes; the order inside a pair alternates.

    The fork server is loaded before the first pair, as before the first trial of a run; its time is reported.
    """
    launcher = registry.load("launcher", "local")()
    launcher.open(preload(), "cpu")
    ours: list[float] = []
    theirs: list[float] = []
    try:
        with tempfile.TemporaryDirectory() as scratch:
            for pair in range(pairs):
                for harness in (True, False) if pair % 2 else (False, True):
                    folder = Path(scratch, f"{pair}")
                    if harness:
                        ours.append(run_trial(launcher, bench_trial(2, 1, 1), folder)[0])
                    else:
                        theirs.append(_torchrun())
    finally:
        launcher.close()
    loaded = launcher.preload_seconds
    what = f"turnaround: one step on 2 processes, start to end (fork server loaded once per run in {loaded:.1f} s)"
    return outcome(what, ("repro", ours), ("torchrun", theirs), "s", LIMIT)


def _torchrun() -> float:
    script = Path(__file__).with_name("bare_ddp.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    begin = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)
    if done.returncode != 0:
        raise TrialError(f"torchrun failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    return time.perf_counter() - begin
