"""Language models in real processes: every engine passes the gate and trains alike, on prose and on token form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from repro.record.folder.store import read_record
from repro.workloads import gpt, text
from tests.commands import Ended, command
from tests.plans import suite

pytest.importorskip("torch")
pytest.importorskip("deepspeed")

ALL = ("[ddp, fsdp, {kind: deepspeed, stage: 0}, {kind: deepspeed, stage: 1}, {kind: deepspeed, stage: 2}, "
       "{kind: deepspeed, stage: 3}]")
SMALL_TEXT = "{kind: text, context: 32, layers: 1, width: 32, heads: 2}"
SMALL_GPT = ("{kind: gpt, tokenizer: bytes, size: small, layers: 2, width: 32, heads: 2, context: 32, "
             "eval_tokens: 4096, pad_vocabulary: 128}")


def written(workload: str, target: float, engines: str = ALL) -> str:
    return suite("language", f"matrix:\n  engine: {engines}\nbaseline: {{engine: ddp}}\n", head="master_seed: 5\n",
                 workload=workload, batch="{global: 16, accumulation: 2}", gradient_clip=1.0,
                 optimizer="{kind: adamw, lr: 0.01, betas: [0.9, 0.95], decay: weights}", evaluate_every=640,
                 stop=f"{{metric: val_loss, target: {target}, max_epochs: 1}}", processes=2, timeout_seconds=300)


def repro(folder: Path, *arguments: str) -> Ended:
    return command(folder, *arguments, REPRO_DATA=str(folder / "store"))


@pytest.mark.slow
def test_text_passes_the_gate_under_ddp_and_fsdp(tmp_path: Path) -> None:
    (tmp_path / "suite.yaml").write_text(written(SMALL_TEXT, 3.0, "[ddp, fsdp]"))
    ended = repro(tmp_path, "gate", "suite.yaml", "--json")
    assert ended.code == 0, ended.error
    rows = json.loads(ended.out)["rows"]
    assert {row["passed"] for row in rows} == {True}
    assert len(rows) > 3


def curves(folder: Path) -> dict[str, list[float]]:
    record = read_record(folder)
    names = {cell.cell_id: cell.label for cell in record.plan.cells}
    assert {item.status for item in record.results} == {"ok"}
    return {names[item.cell_id]: [float(point.value or np.nan) for point in item.curve] for item in record.results}


def agree(found: dict[str, list[float]], engines: int) -> None:
    """Every engine does the same arithmetic, so the losses of all are equal up to rounding, which grows with the steps:
    from 1e-6 at the first evaluation to 1e-2 at the sixth, where the loss falls fastest."""
    assert len(found) == engines
    first = found["ddp"]
    assert first[-1] < first[0]
    for values in found.values():
        np.testing.assert_allclose(values[:4], first[:len(values)][:4], rtol=2e-3)
        np.testing.assert_allclose(values, first[:len(values)], rtol=3e-2)


@pytest.mark.slow
def test_every_engine_trains_text_alike(tmp_path: Path) -> None:
    (tmp_path / "suite.yaml").write_text(written(SMALL_TEXT, 2.9))
    ended = repro(tmp_path, "run", "suite.yaml", "--no-mlflow", "--out", "run")
    assert ended.code == 0, ended.error
    agree(curves(tmp_path / "run"), 6)


@pytest.mark.slow
def test_every_engine_trains_gpt_on_token_shards_alike(tmp_path: Path) -> None:
    book = text.verified()
    given = tmp_path / "given"
    given.mkdir()
    gpt.write(given / "made_train_000001.bin", book[:150_000].astype(np.uint16))
    gpt.write(given / "made_train_000002.bin", book[150_000:200_000].astype(np.uint16))
    gpt.write(given / "made_val_000000.bin", book[-5000:].astype(np.uint16))
    identity: dict[str, Any] = {"name": "bytes", "vocabulary": 256,
                                "sha256": "d3a519f1039440f4381a7096527d2b4eee16a38cc7aeeb57689093c5efab2fa1"}
    (given / "tokenizer.json").write_text(json.dumps(identity))
    prepared = repro(tmp_path, "data", "prepare", "gpt", "--from", "given")
    assert prepared.code == 0, prepared.error
    (tmp_path / "suite.yaml").write_text(written(SMALL_GPT, 2.95))
    ended = repro(tmp_path, "run", "suite.yaml", "--no-mlflow", "--out", "run")
    assert ended.code == 0, ended.error
    agree(curves(tmp_path / "run"), 6)
    page = (tmp_path / "run" / "report" / "report.html").read_text()
    assert "Loss against each clock" in page
    assert "bits per byte" in page
