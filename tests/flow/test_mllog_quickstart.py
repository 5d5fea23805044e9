"""The mllog package of a real `repro run quickstart` against MLCommons' own tools: real engines, real logs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from repro.core import registry
from repro.published.mlperf.folder import import_folder
from repro.record.folder.store import read_record
from tests.unit.reporters.test_report_mllog import FOREIGN, complaints

NOT_KNOWN = ("lowest_numerical_precision_in_attn",)
"""Fields that round 6.1 requires and no code measures; the others are read back from the run."""


@pytest.mark.slow
def test_a_quickstart_passes_the_common_rules_of_every_round(tmp_path: Path) -> None:
    pytest.importorskip("mlperf_logging", reason="mlperf-logging is not installed")
    command = [sys.executable, "-m", "repro", "run", "quickstart", "--seeds", "1", "-o", "sequential=null",
               "--master-seed", "3", "--no-mlflow", "--out", str(tmp_path / "run")]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900)
    assert ended.returncode in (0, 3), ended.stderr[-2000:]
    record = read_record(tmp_path / "run")
    assert len(record.results) == 4
    registry.load("reporter", "mllog")().write(record, tmp_path / "out")
    logs = sorted((tmp_path / "out/mllog/results").rglob("result_*.txt"))
    assert len(logs) == 4
    for log in logs:
        for ruleset, but in (("4.1.0", FOREIGN), ("5.0.0", FOREIGN), ("5.1.0", FOREIGN),
                             ("6.1.0", (*FOREIGN, *NOT_KNOWN))):
            assert complaints(log, ruleset, tmp_path, but) == [], (log, ruleset)
    found = import_folder(tmp_path / "out/mllog")
    assert sorted(item.run_seconds or 0 for item in found.results) == pytest.approx(
        sorted(item.run_seconds or 0 for item in record.results), abs=0.002)
    for item in (["mlperf_logging.package_checker", str(tmp_path / "out/mllog"), "training", "5.1.0"],):
        checked = subprocess.run([sys.executable, "-m", *item], cwd=tmp_path, capture_output=True, text=True,
                                 timeout=120)
        assert "PACKAGE CHECKER FOUND NO ERRORS" in checked.stderr, checked.stderr
