"""The gate through the front door with a model as users have them: dict inputs, random layers, pieces of batches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("deepspeed")

ROOT = Path(__file__).parents[2]
SUITE = """\
suite: models
seeds: 1
master_seed: 5
trial:
  processes: 2
  batch: {global: 32, accumulation: 2}
  optimizer: {kind: sgd, lr: 0.1, momentum: 0.9}
  gradient_clip: 1.0
  stop: {metric: loss, target: 4.0, max_epochs: 1}
  evaluate_every: 256
  eval_batch: 10
  gate: {micro: 4, eval_samples: 30}
  device: cpu
  timeout_seconds: 120
matrix:
  workload: [{kind: random-layers, hook: true}, {kind: random-layers, hook: false}]
  engine: ENGINES
"""


def gate(folder: Path, engines: str) -> list[dict[str, Any]]:
    (folder / "suite.yaml").write_text(SUITE.replace("ENGINES", engines))
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "plugins")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    ended = subprocess.run([sys.executable, "-m", "repro", "gate", "suite.yaml", "--json"], cwd=folder, timeout=280,
                           env=environment, capture_output=True, text=True, check=False)
    found: list[dict[str, Any]] = json.loads(ended.stdout)
    return found


@pytest.mark.parametrize("engines", [
    "[ddp, {kind: deepspeed, stage: 3}]",
    pytest.param("[ddp, fsdp, {kind: deepspeed, stage: 0}, {kind: deepspeed, stage: 1}, {kind: deepspeed, stage: 2}]",
                 marks=pytest.mark.slow)])
def test_a_model_with_random_layers_passes_with_the_hook_and_is_told_it_without(tmp_path: Path, engines: str) -> None:
    rows = gate(tmp_path, engines)
    assert {row["group"] for row in rows} == {
        "random-layers, batch 16, 2 processes", "random-layers (hook=False), batch 16, 2 processes"}
    told = [row for row in rows if "hook=False" in row["group"]]
    assert [row for row in rows if row not in told and not row["passed"]] == []
    assert len(rows) - len(told) > 10
    assert told and all(not row["passed"] and "without_randomness" in row["text"] for row in told)
    assert all("\n" not in row["text"] and len(row["text"]) < 700 for row in told)
