"""The parity gate with K-FAC: healthy cells pass, a rank that keeps factors of its own samples is named. Real ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.commands import command
from tests.plans import suite

pytest.importorskip("torch")

LOCAL = """\
from repro.papers.kfac.kfac import Kfac


class Local(Kfac):
    def attach(self, model, place):
        running = super().attach(model, place)
        running.exchange.average = lambda flat: None
        return running
"""
HEALTHY = """\
matrix:
  engine: [ddp, {kind: deepspeed, stage: 0}]
  comm: [ring]
  preconditioner:
    - {kind: kfac, damping: 0.03}
    - {kind: kfac, damping: 0.03, placement: lw}
    - {kind: kfac, inverse: direct, damping: 0.3}
  precision: [fp32, bf16-master]
"""


def gated(folder: Path, preconditioner: str, more: str = "", workload: str = "mnist1d") -> list[dict[str, Any]]:
    """Return the checks of the gate that failed."""
    (folder / "suite.yaml").write_text(suite(
        "gated", more, workload=workload, batch="{global: 64, accumulation: 2}",
        optimizer="{kind: sgd, lr: 0.05, momentum: 0.9}", stop="{metric: top1, target: 0.9, max_epochs: 4}",
        evaluate_every=640, processes=2, preconditioner=preconditioner))
    code, out, error = command(folder, "gate", "suite.yaml", "--json")
    rows = json.loads(out)["rows"]
    assert rows, error
    failed = [row for row in rows if not row["passed"]]
    assert (code == 0) == (not failed)
    return failed


@pytest.mark.slow
def test_factors_of_one_rank_alone_are_found(tmp_path: Path) -> None:
    (tmp_path / "local.py").write_text(LOCAL)
    assert {row["check"] for row in gated(tmp_path, "{kind: local.py:Local, placement: lw}")} >= {"update", "weight"}


@pytest.mark.slow
@pytest.mark.parametrize("workload", ["mnist1d", "{kind: digits, norm: batch}"])
def test_healthy_cells_pass(tmp_path: Path, workload: str) -> None:
    assert gated(tmp_path, "kfac", HEALTHY, workload) == []


@pytest.mark.slow
def test_a_language_model_passes(tmp_path: Path) -> None:
    (tmp_path / "suite.yaml").write_text(suite(
        "prose", workload="text", batch=16, optimizer="{kind: sgd, lr: 0.05, momentum: 0.9}", gradient_clip=1.0,
        stop="{metric: val_loss, target: 2.2, max_epochs: 1}", evaluate_every=1600, processes=2,
        preconditioner="{kind: kfac, placement: lw}"))
    code, out, error = command(tmp_path, "gate", "suite.yaml", "--json")
    assert code == 0, error
    assert all(row["passed"] for row in json.loads(out)["rows"])
