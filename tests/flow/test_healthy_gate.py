"""The gate accuses no healthy engine: every engine, batch, optimizer and norm with twenty seeds. Slow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.commands import command

pytest.importorskip("torch")
pytest.importorskip("deepspeed")

BATCHES = (32, 64, 128, 256)
OPTIMIZERS = {
    "sgd": "{kind: sgd, lr: 0.05, momentum: 0.9, weight_decay: 0.01, decay: weights}",
    "adamw": "{kind: adamw, lr: 0.003, decay: weights}",
}
SUITE = """\
suite: healthy
seeds: 1
master_seed: {seed}
trial:
  workload: {{kind: digits, norm: {norm}}}
  processes: 2
  batch: {{global: {batch}, accumulation: 2}}
  optimizer: {optimizer}
  gradient_clip: 0.5
  schedule: {{kind: cosine}}
  stop: {{metric: top1, target: 0.05, max_epochs: 3}}
  evaluate_every: 640
  device: cpu
  timeout_seconds: 300
matrix:
  engine: [ddp, fsdp, {{kind: deepspeed, stage: 0}}, {{kind: deepspeed, stage: 1}}, {{kind: deepspeed, stage: 2}},
           {{kind: deepspeed, stage: 3}}]
"""


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["group", "batch"])
@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
@pytest.mark.parametrize("seed", range(1, 21))
def test_no_healthy_engine_is_accused(tmp_path: Path, seed: int, optimizer: str, norm: str) -> None:
    # Batches take turns over seeds, so that each meets every optimizer and norm five times.
    text = SUITE.format(seed=seed, norm=norm, batch=BATCHES[seed % 4], optimizer=OPTIMIZERS[optimizer])
    (tmp_path / "suite.yaml").write_text(text)
    ended = command(tmp_path, "gate", "suite.yaml", "--json")
    failed = [row for row in json.loads(ended.out) if not row["passed"]]
    assert failed == []
    assert ended.code == 0
