"""Models and inputs that are odd and no defect end as any other trial: neither invalid nor crashed. Slow."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from repro.record.folder.store import read_record
from tests.commands import PLUGINS, command
from tests.plans import suite

pytest.importorskip("torch")

CASES = ("plain", "mask", "edges", "steps first", "missing values", "in place", "running mean", "sparse")


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "cases", "trial"), [
    ("OddModel", CASES, {}), ("OddModel", CASES[:6], {"precision": "bf16-master"}), ("StatefulModel", ("counter",), {}),
    ("OddModel", ("plain",), {"precision": "fp16-autocast", "optimizer": "{kind: sgd, lr: 1000000.0}"}),
], ids=["fp32", "bf16-master", "stateful", "diverged"])
def test_an_odd_model_is_no_defect(tmp_path: Path, kind: str, cases: tuple[str, ...], trial: dict[str, object]) -> None:
    shutil.copy(PLUGINS / "odd_models.py", tmp_path)
    (tmp_path / "suite.yaml").write_text(suite(
        "odd", f"matrix:\n  workload.case: [{', '.join(cases)}]\n", head="master_seed: 7\n", processes=2, **{
            "workload": f"{{kind: 'odd_models.py:{kind}'}}", "batch": "{global: 32, accumulation: 2}",
            "engine": "ddp", "optimizer": "{kind: sgd, lr: 0.05}", "stop": "{metric: top1, target: 1.0, max_epochs: 5}",
            "evaluate_every": 512, "timeout_seconds": 120, "gate": "{skip: trials are tested}"} | trial))
    ended = command(tmp_path, "run", "suite.yaml", "--no-mlflow", "--out", "run")
    assert "Traceback" not in ended.error, ended.error
    record = read_record(tmp_path / "run")
    found = {record.cell(item.cell_id).label: (item.status, item.reason) for item in record.results}
    assert len(found) == len(cases)
    assert {status for status, _ in found.values()} <= {"missed", "ok", "diverged"}, found
