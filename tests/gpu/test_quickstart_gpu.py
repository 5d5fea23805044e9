"""The bundled quickstart on a GPU, unchanged: one rank, fp32 and bf16-autocast."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from repro.core.machine import detect

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(detect().device != "cuda", reason="no GPU that the installed torch can use"),
]


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16-autocast", "fp16-autocast", "bf16-master"])
def test_quickstart_runs_on_the_gpu(tmp_path: Path, precision: str) -> None:
    command = [sys.executable, "-m", "repro", "run", "quickstart", "--seeds", "2", "-o", "sequential=null",
               "-o", "processes=1",
               "-o", f"precision={precision}", "--out", str(tmp_path / "run"), "--no-mlflow", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    ended = json.loads(done.stdout)
    assert set(ended["trials"]) == {"ok"}
    results = [json.loads(path.read_text()) for path in (tmp_path / "run" / "trials").glob("*/result.json")]
    assert all(result["peak_bytes"] for result in results)
    assert all(result["conservation_error"] < 0.01 for result in results)
