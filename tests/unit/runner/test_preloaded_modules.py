"""Modules that a run loads ahead of its trials: those that its trials and its gate need, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.core.machine import Machine
from repro.runner import launching
from repro.suite.file import read_suite
from repro.suite.planning.plan import make_plan

SUITE = """\
suite: some
seeds: 1
trial:
  workload: digits
  engine: {engine}
  launcher: inline
  batch: {{global: 64}}
  optimizer: {{kind: sgd, lr: 0.1}}
  stop: {{metric: top1, target: 0.9, max_epochs: 1}}
  evaluate_every: 1437
  device: cpu
"""


@pytest.mark.parametrize(("engine", "trains"), [("fake", False), ("single", True)])
def test_the_gates_worker_is_loaded_if_a_trial_trains_a_model(tmp_path: Path, engine: str, trains: bool) -> None:
    (tmp_path / "suite.yaml").write_text(SUITE.format(engine=engine))
    found = read_suite(str(tmp_path / "suite.yaml"))
    modules = launching._modules(make_plan(found.suite, Machine("cpu", 0, 2), found.problem))
    assert ("repro.worker.gate.worker" in modules) == trains
    assert ("torch" in modules) == trains
