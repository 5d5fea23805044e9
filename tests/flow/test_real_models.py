"""ResNet-50 on image folders and GPT on token shards: every engine passes the gate, trains, is killed and resumes.

Made-up data in the real file formats, two processes, input workers; from the files to a sound record with its page.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from repro.record.folder.store import Record, read_record
from repro.workloads import gpt, text
from repro.workloads.tokens.tokenizers import BYTES
from tests.chaos.faults import ranks_of
from tests.commands import command, environment
from tests.made_data import image_folders

pytest.importorskip("torch")
pytest.importorskip("deepspeed")

SUITE = """\
suite: real-models
seeds: 1
master_seed: 7
on_failure: resume_from_checkpoint
checkpoint_every: 1
attempts: 4
trial:
  workload: {workload}
  processes: 2
  batch: {{global: 16}}
  input: {{workers: 1}}
  optimizer: {optimizer}
  stop: {{metric: {metric}, target: {target}, max_epochs: {epochs}, design: fixed_budget}}
  evaluate_every: {every}
  device: cpu
  timeout_seconds: 3600
matrix:
  engine: [ddp, fsdp, {{kind: deepspeed, stage: 0}}, {{kind: deepspeed, stage: 1}}, {{kind: deepspeed, stage: 2}},
           {{kind: deepspeed, stage: 3}}]
baseline: {{engine: ddp}}
"""


def _images(folder: Path) -> str:
    image_folders(folder, train=64)
    return SUITE.format(workload="{kind: imagenet, model: resnet50, image_size: 32}", metric="top5", target=0.5,
                        epochs=2, every=32, optimizer="{kind: sgd, lr: 0.005, momentum: 0.9}")


def _tokens(folder: Path) -> str:
    book = text.verified().astype(np.uint16)
    folder.mkdir()
    gpt.write(folder / "made_train_000001.bin", book[:60_000])
    gpt.write(folder / "made_train_000002.bin", book[60_000:100_000])
    gpt.write(folder / "made_val_000000.bin", book[-5000:])
    (folder / "tokenizer.json").write_text(
        json.dumps({"name": BYTES.name, "vocabulary": BYTES.vocabulary, "sha256": BYTES.sha256}))
    model = ("{kind: gpt, tokenizer: bytes, size: small, layers: 2, width: 64, heads: 2, context: 32, "
             "eval_tokens: 4096}")
    return SUITE.format(workload=model, metric="val_loss", target=5.0, epochs=1, every=640,
                        optimizer="{kind: adamw, lr: 0.003, decay: weights}")


def _repro(folder: Path, *arguments: str) -> str:
    code, out, error = command(folder, *arguments, REPRO_DATA=str(folder / "store"))
    assert code == 0, out + error
    return out + error


def _run_and_kill(folder: Path) -> set[str]:
    """Run the suite and kill a rank of every trial once it has a checkpoint; return the trials that lost one."""
    killed: set[str] = set()
    with (folder / "out.txt").open("w") as out:
        run = subprocess.Popen([sys.executable, "-m", "repro", "run", "suite.yaml", "--no-mlflow", "--out", "run"],
                               cwd=folder, env=environment(REPRO_DATA=str(folder / "store")), stdout=out,
                               stderr=subprocess.STDOUT)
        try:
            while run.poll() is None:
                time.sleep(0.01)
                for kept in (folder / "run").glob("trials/*/checkpoints"):
                    trial = kept.parent
                    if trial.name in killed or not any(kept.glob("step_*")) or (trial / "result.json").exists():
                        continue
                    ranks = ranks_of(run.pid)
                    if len(ranks) == 2:
                        with suppress(ProcessLookupError):
                            os.kill(ranks[len(killed) % 2], signal.SIGKILL)
                            killed.add(trial.name)
        finally:
            run.kill()
            run.wait()
    assert run.returncode == 0, (folder / "out.txt").read_text()
    return killed


def _curves(record: Record) -> list[list[float]]:
    return [[float(point.value or np.nan) for point in result.curve] for result in record.results]


@pytest.mark.slow
@pytest.mark.parametrize(("data", "prepare", "metric"), [("imagenet", _images, "top5"), ("gpt", _tokens, "val_loss")])
def test_every_engine_passes_trains_is_killed_and_resumes(
    tmp_path: Path, data: str, prepare: Callable[[Path], str], metric: str
) -> None:
    (tmp_path / "suite.yaml").write_text(prepare(tmp_path / "given"))
    _repro(tmp_path, "data", "prepare", data, "--from", "given")
    killed = _run_and_kill(tmp_path)
    record = read_record(tmp_path / "run")
    assert len(record.results) == 6
    assert {result.status for result in record.results} == {"ok"}, (tmp_path / "out.txt").read_text()
    assert killed == {result.trial_id for result in record.results}
    assert all(result.attempt > 1 for result in record.results), "each was resumed"
    gate = json.loads((tmp_path / "run" / "parity.json").read_text())
    assert gate["needed"]
    curves = _curves(record)
    assert len({len(curve) for curve in curves}) == 1
    assert len(curves[0]) >= 3
    if metric == "val_loss":
        assert curves[0][-1] < curves[0][0]
        for curve in curves[1:]:
            np.testing.assert_allclose(curve, curves[0], rtol=2e-3)
    assert len({result.hashes["data_order"] for result in record.results}) == 1
    assert "sound" in _repro(tmp_path, "verify", "run")
    assert (tmp_path / "run" / "report" / "report.html").stat().st_size > 100_000
