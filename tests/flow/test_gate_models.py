"""The gate through the front door with a model as users have them: dict inputs, random layers, pieces of batches."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from repro.core.random_streams import Streams
from repro.record.folder.store import read_record
from tests.commands import PLUGINS, ROOT
from tests.commands import command as asked
from tests.plans import suite

pytest.importorskip("torch")
pytest.importorskip("deepspeed")

SUITE = suite("models", """\
matrix:
  workload: [{kind: random-layers, ragged: true}, {kind: random-layers}, {kind: random-layers, hook: false}]
  engine: ENGINES
""", head="master_seed: 5\n", batch="{global: 32, accumulation: 2}", optimizer="{kind: sgd, lr: 0.1, momentum: 0.9}",
    stop="{metric: loss, target: 4.0, max_epochs: 1}", evaluate_every=256, processes=2, gradient_clip=1.0,
    eval_batch=10, gate="{micro: 4, eval_samples: 30}", timeout_seconds=120)


def repro(folder: Path, suite: str, command: str, *options: str) -> str:
    (folder / "suite.yaml").write_text(suite)
    return asked(folder, command, "suite.yaml", *options, PYTHONPATH=f"{ROOT}{os.pathsep}{PLUGINS}").out


def gate(folder: Path, engines: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(
        repro(folder, SUITE.replace("ENGINES", engines), "gate", "--json"))["rows"]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("engines", [
    "[ddp, fsdp]", "[{kind: deepspeed, stage: 0}, {kind: deepspeed, stage: 1}, {kind: deepspeed, stage: 2}, "
                   "{kind: deepspeed, stage: 3}]"])
def test_a_model_with_random_layers_passes_with_the_hook_and_is_told_it_without(tmp_path: Path, engines: str) -> None:
    rows = gate(tmp_path, engines)
    assert {row["group"] for row in rows} == {
        f"random-layers{option}, batch 16, 2 processes" for option in ("", " (ragged=True)", " (hook=False)")}
    told = [row for row in rows if "hook=False" in row["group"]]
    assert [row for row in rows if row not in told and not row["passed"]] == []
    assert len(rows) - len(told) > 10
    assert told and all(not row["passed"] and "without_randomness" in row["text"] for row in told)
    assert all("\n" not in row["text"] and len(row["text"]) < 700 for row in told)


def test_every_sequence_counts_alike_in_the_ragged_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Written apart from the workload, in numpy."""
    import torch

    monkeypatch.syspath_prepend(str(PLUGINS))
    from random_layers import RandomLayers

    parts = RandomLayers(ragged=True).build(Streams(3, 0), "cpu")
    parts.open_data()
    _, targets = parts.train_batch(0, np.arange(12))
    logits = torch.randn(12, targets.shape[1], 97, generator=torch.Generator().manual_seed(1))
    shares = np.log(np.exp(logits.double().numpy()).sum(-1, keepdims=True)) - logits.double().numpy()
    losses = [np.mean([row[place][token] for place, token in enumerate(tokens) if token >= 0])
              for row, tokens in zip(shares, targets.numpy(), strict=True)]
    lengths = {int((tokens >= 0).sum()) for tokens in targets}
    assert len(lengths) > 3 and min(lengths) >= 1
    assert float(parts.loss({"logits": logits}, targets)) == pytest.approx(np.mean(losses), rel=1e-6)


@pytest.mark.slow
def test_out_of_memory_is_a_result_and_a_stated_reason_skips_the_gate(tmp_path: Path) -> None:
    """A real allocation fails on rank 1 of two; rank 0, which loses its link, is not the one that is blamed."""
    suite = SUITE[:SUITE.index("matrix:")].replace("{micro: 4, eval_samples: 30}", "{skip: it would not fit}") + (
        "matrix:\n  engine: [ddp, fsdp]\n")
    suite = suite.replace("trial:\n", "trial:\n  workload: {kind: random-layers, greedy_at: 9}\n")
    repro(tmp_path, suite, "run", "--out", "run", "--no-mlflow")
    record = read_record(tmp_path / "run")
    assert len(record.results) == 2
    for result in record.results:
        assert result.status == "out_of_memory", result.reason
        assert result.reason.startswith("rank 1: out of memory in a training step, 131072.00 GiB more could not be "
                                        "allocated; peak until then 0.")
        assert "batch.accumulation above 2 (micro batches of 8 now)" in result.reason
        assert "\n" not in result.reason
        assert ("engine: fsdp" in result.reason) is ("ddp" in result.trial_id)
    assert all(attempt.seconds is None or attempt.seconds < 60 for attempt in record.attempts)
    assert record.parity == {"needed": False, "why": "not gated: it would not fit",
                             "skipped": dict.fromkeys((cell.label for cell in record.plan.cells), "it would not fit")}
    assert "not gated: it would not fit" in record.plan.notes
