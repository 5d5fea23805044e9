"""Metrics of all evaluation samples together: computed of the gathered set, and not let pass as sums."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.commands import ROOT, command

SPIRALS = (ROOT / "examples" / "spirals" / "spirals.py").read_text()
SUITE = """\
suite: ranked
seeds: 1
trial:
  workload: spirals.py:Spirals
  engine: ddp
  processes: {processes}
  device: cpu
  batch: {{global: 64}}
  optimizer: {{kind: adamw, lr: 0.01}}
  stop: {{metric: auc, target: 0.6, max_epochs: 2}}
  evaluate_every: 500
  eval_batch: {batch}
"""
AUC = """

def auc(outputs, targets):
    from sklearn.metrics import roc_auc_score
    return roc_auc_score(targets.cpu().numpy(), (outputs[:, 1] - outputs[:, 0]).cpu().numpy())


def summed_auc(outputs, targets):
    import torch
    return torch.tensor(auc(outputs, targets) * len(targets))
"""


def ranked(folder: Path, score: str, processes: int, batch: int) -> Path:
    """Write a suite of the spirals that is judged by the AUC."""
    folder.mkdir()
    text = SPIRALS.replace('{"top1": "higher"}', '{"auc": "higher"}').replace(
        '{"top1": classification.top1}', f'{{"auc": {score}}}').replace(
        "TrainingParts, Workload\n", "TrainingParts, WholeSet, Workload\n") + AUC
    (folder / "spirals.py").write_text(text)
    (folder / "suite.yaml").write_text(SUITE.format(processes=processes, batch=batch))
    return folder


@pytest.mark.slow
def test_a_metric_of_the_whole_set_does_not_depend_on_ranks_and_batches(tmp_path: Path) -> None:
    curves = []
    for processes, batch in ((1, 500), (2, 7)):
        place = ranked(tmp_path / f"{processes}", "WholeSet(auc)", processes, batch)
        done = command(place, "run", "suite.yaml", "--no-mlflow", "--out", "run", "--master-seed", "5")
        assert done.code == 0, done.error
        (result,) = (json.loads(path.read_text()) for path in (place / "run" / "trials").glob("*/result.json"))
        curves.append([point["value"] for point in result["curve"]])
        assert "sound" in command(place, "verify", "run").out
    assert len(curves[0]) >= 1 and curves[1] == pytest.approx(curves[0], abs=2e-3)


@pytest.mark.slow
def test_a_metric_that_is_no_sum_stops_at_the_gate(tmp_path: Path) -> None:
    place = ranked(tmp_path / "bad", "summed_auc", 1, 100)
    done = command(place, "gate", "suite.yaml")
    assert done.code != 0 and "metric auc: this score is not additive" in done.out + done.error, done.out + done.error
