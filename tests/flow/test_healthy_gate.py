"""The gate accuses no healthy engine: every engine, batch, optimizer and norm with twenty seeds. Slow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.commands import command
from tests.plans import suite

pytest.importorskip("torch")
pytest.importorskip("deepspeed")

ENGINES = """\
matrix:
  engine: [ddp, fsdp, {kind: deepspeed, stage: 0}, {kind: deepspeed, stage: 1}, {kind: deepspeed, stage: 2},
           {kind: deepspeed, stage: 3}]
"""
BATCHES = (32, 64, 128, 256)
OPTIMIZERS = {
    "sgd": "{kind: sgd, lr: 0.05, momentum: 0.9, weight_decay: 0.01, decay: weights}",
    "adamw": "{kind: adamw, lr: 0.003, decay: weights}",
}


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["group", "batch"])
@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
@pytest.mark.parametrize("seed", range(1, 21))
def test_no_healthy_engine_is_accused(tmp_path: Path, seed: int, optimizer: str, norm: str) -> None:
    # Batches take turns over seeds, so that each meets every optimizer and norm five times.
    (tmp_path / "suite.yaml").write_text(suite(
        "healthy", ENGINES, head=f"master_seed: {seed}\n", workload=f"{{kind: digits, norm: {norm}}}",
        batch=f"{{global: {BATCHES[seed % 4]}, accumulation: 2}}", optimizer=OPTIMIZERS[optimizer],
        stop="{metric: top1, target: 0.05, max_epochs: 3}", evaluate_every=640, processes=2, gradient_clip=0.5,
        schedule="{kind: cosine}", timeout_seconds=300))
    ended = command(tmp_path, "gate", "suite.yaml", "--json")
    failed = [row for row in json.loads(ended.out)["rows"] if not row["passed"]]
    assert failed == []
    assert ended.code == 0
