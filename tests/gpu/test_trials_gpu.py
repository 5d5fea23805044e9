"""Whole trials on GPUs through the command line: killed and resumed, with checkpoints of every engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from repro.core.machine import detect
from tests.chaos.faults import ranks_of

MACHINE = detect()
DEVICES = [pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(
    MACHINE.device != "cuda", reason="no GPU that the installed torch can use")]),
    pytest.param("cpu", marks=pytest.mark.slow)]
ENGINES = ["single", "ddp", "fsdp", *(f"{{kind: deepspeed, stage: {stage}}}" for stage in range(4))]
SUITE = """\
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
LIMIT_SECONDS = 500


def start(folder: Path, text: str) -> subprocess.Popen[str]:
    folder.mkdir()
    (folder / "suite.yaml").write_text(text)
    command = [sys.executable, "-m", "repro", "run", "suite.yaml", "--out", "run", "--no-mlflow", "--json",
               "--master-seed", "7"]
    return subprocess.Popen(command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            start_new_session=True, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])})


def result(folder: Path) -> dict[str, Any]:
    path, = (folder / "run" / "trials").glob("*/result.json")
    return dict(json.loads(path.read_text()))


def kill_a_rank(run: subprocess.Popen[str], folder: Path) -> None:
    """Kill rank 0 once the trial has a checkpoint."""
    end = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < end and run.poll() is None:
        if any((folder / "run" / "trials").glob("*/checkpoints/step_*")) and (ranks := ranks_of(run.pid)):
            os.kill(ranks[0], signal.SIGKILL)
            return
        time.sleep(0.002)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_killed_trial_resumes_to_the_same_weights(tmp_path: Path, engine: str, processes: int, device: str) -> None:
    if device == "cuda" and processes > MACHINE.device_count:
        pytest.skip(f"needs {processes} GPUs, there are {MACHINE.device_count}")
    if engine == "single" and processes > 1:
        pytest.skip("engine single trains in one process")
    text = SUITE.format(engine=engine, processes=processes, device=device, epochs=20)
    whole, killed = start(tmp_path / "whole", text), None
    try:
        assert "run" in whole.communicate(timeout=LIMIT_SECONDS)[0]
        killed = start(tmp_path / "killed", text)
        kill_a_rank(killed, tmp_path / "killed")
        said = killed.communicate(timeout=LIMIT_SECONDS)
        found, expected = result(tmp_path / "killed"), result(tmp_path / "whole")
        assert found["attempt"] == 2, said
        assert found["resumed"], said
        assert found["hashes"]["final_weights"] == expected["hashes"]["final_weights"]
    finally:
        for run in (whole, killed):
            if run is not None and run.poll() is None:
                os.killpg(run.pid, signal.SIGKILL)
                run.wait()


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


@pytest.mark.parametrize("device", DEVICES)
def test_input_workers_feed_the_same_bytes(tmp_path: Path, device: str) -> None:
    """On a GPU their batches come through pinned memory and are copied while the step before computes."""
    run = start(tmp_path / "fed", FED.format(device=device))
    try:
        said = run.communicate(timeout=LIMIT_SECONDS)
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()
    found = [json.loads(path.read_text()) for path in (tmp_path / "fed" / "run" / "trials").glob("*/result.json")]
    assert [item["status"] for item in found] == ["ok", "ok"], said
    assert {item["effective"]["input_workers"] for item in found} == {"0", "2"}
    assert len({item["hashes"]["final_weights"] for item in found}) == 1
