"""Whole trials through the command line on a device, and a rank of one that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from repro.core.files import read_model
from repro.record.result.results import Result
from tests.chaos.faults import ranks_of

ROOT = Path(__file__).resolve().parents[2]
LIMIT_SECONDS = 500
KILLED = """\
suite: killed
seeds: 1
on_failure: resume_from_checkpoint
checkpoint_every: 1
trial:
  workload: {{kind: digits-mlp, hidden: 160}}
  determinism: bitwise
  processes: {processes}
  engine: {engine}
  batch: {{global: 64}}
  optimizer: {{kind: adamw, lr: 0.002}}
  stop: {{metric: top1, target: 0.999, max_epochs: {epochs}, design: fixed_budget}}
  evaluate_every: 720
  device: {device}
"""
"""One trial of many checkpoints; `result` after a killed rank must be that of a whole one."""
FED = """\
suite: fed
seeds: 1
trial:
  workload: text
  determinism: bitwise
  engine: ddp
  batch: {{global: 16}}
  optimizer: {{kind: adamw, lr: 0.002}}
  stop: {{design: fixed_steps, steps: 20, warmup: 4}}
  device: {device}
matrix:
  input.workers: [0, 2]
"""
"""Two trials, one fed by the rank and one by input workers."""


def start(folder: Path, text: str) -> subprocess.Popen[str]:
    """Start `repro run` on a suite in a new folder; both outputs are pipes."""
    folder.mkdir()
    (folder / "suite.yaml").write_text(text)
    command = [sys.executable, "-m", "repro", "run", "suite.yaml", "--out", "run", "--no-mlflow", "--json",
               "--master-seed", "7"]
    return subprocess.Popen(command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            start_new_session=True, env={**os.environ, "PYTHONPATH": str(ROOT)})


def results(folder: Path) -> list[Result]:
    """Return the results of the trials of a run in a folder."""
    return [read_model(path, Result) for path in sorted((folder / "run" / "trials").glob("*/result.json"))]


def kill_a_rank(run: subprocess.Popen[str], folder: Path) -> None:
    """Kill rank 0 once the trial has a checkpoint."""
    end = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < end and run.poll() is None:
        if any((folder / "run" / "trials").glob("*/checkpoints/step_*")) and (ranks := ranks_of(run.pid)):
            os.kill(ranks[0], signal.SIGKILL)
            return
        time.sleep(0.002)


def end(run: subprocess.Popen[str] | None) -> None:
    """Kill a run that is still there, and its processes."""
    if run is not None and run.poll() is None:
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()
