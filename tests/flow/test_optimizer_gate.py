"""The parity gate passes every optimizer in every engine that a plan allows it in, through the front door. Slow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.commands import Ended, command
from tests.flow.test_optimizer_resume import OPTIMIZERS, engines_of
from tests.plans import suite

pytest.importorskip("torch")
pytest.importorskip("deepspeed")
pytest.importorskip("pytorch_optimizer")
pytest.importorskip("schedulefree")


def gate(folder: Path, name: str, seed: int) -> Ended:
    text = suite("gated", f"matrix:\n  engine: [{', '.join(engines_of(name))}]\n", head=f"master_seed: {seed}\n",
                 workload="{kind: digits-mlp, hidden: 64}", batch="{global: 64, accumulation: 2}",
                 optimizer=OPTIMIZERS[name], stop="{metric: top1, target: 0.05, max_epochs: 3}", evaluate_every=640,
                 processes=2, gradient_clip=0.5, timeout_seconds=300)
    (folder / "suite.yaml").write_text(text)
    return command(folder, "gate", "suite.yaml", "--json")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_the_gate_passes_every_engine_under_every_optimizer(tmp_path: Path, name: str, seed: int) -> None:
    ended = gate(tmp_path, name, seed)
    rows = json.loads(ended.out)["rows"]
    assert [row for row in rows if not row["passed"]] == [] and ended.code == 0
    assert len({row["candidate"] for row in rows}) == len(engines_of(name))
