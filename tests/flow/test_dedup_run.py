"""A run without near-duplicates that is interrupted, resumed, compared and reproduced: no step asks for more."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from repro.record.folder.store import read_record
from tests.commands import command, start
from tests.plans import suite
from tests.waiting import until

pytestmark = pytest.mark.slow

SUITE = suite("own", """\
matrix:
  workload.dedup.threshold: [0, 8]
  workload.dedup.leave_out: [near, random]
contrasts: [workload.dedup.threshold, workload.dedup.leave_out]
""", seeds=2, workload="{kind: digits-mlp, hidden: 16, depth: 1, planted: 0.1, dedup: {threshold: 0}}",
    optimizer="{kind: sgd, lr: 0.05}", stop="{metric: top1, target: 0.5, max_epochs: 2, design: fixed_budget}",
    evaluate_every=2000, processes=1, determinism="bitwise")


def test_it_resumes_compares_and_reproduces(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(SUITE)
    running = start(tmp_path, "run", "own.yaml", "--no-mlflow", "--out", "run")
    until(lambda: list(tmp_path.glob("run/trials/*/result.json")), running)
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=60)
    before = len(read_record(tmp_path / "run").results)
    code, _, error = command(tmp_path, "run", "--resume", "run", "--no-mlflow")
    assert code == 0, error
    record = read_record(tmp_path / "run")
    assert 1 <= before < len(record.results) == 8
    kept = {cell.choices.workload.options["selected"]["sha256"] for cell in record.plan.cells}
    assert len(kept) == 4, "each cell trains on other images"
    code, said, error = command(tmp_path, "compare", "run")
    assert code == 0, error
    assert "main effects" in said and "leave out random" in said
    assert command(tmp_path, "compare", "run", "--fail-if", "ratio.low > 1.1")[0] == 2, "no contrast to judge"
    code, said, error = command(tmp_path, "reproduce", "run", "--out", "again", "--json")
    assert code == 0, error
    assert json.loads(said)["cells"] and not json.loads(said)["claims"]
