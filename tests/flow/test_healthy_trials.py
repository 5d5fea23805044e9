"""No healthy trial is void or warned of: every engine, format and update rule, through all checks of a trial. Slow."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from repro.record.derive.trial_log import TrialLog
from repro.record.folder.store import read_record
from repro.record.log import schema
from repro.record.log.facts import RankLedger, StepsAgain
from repro.record.log.reading import read_log
from tests.commands import PLUGINS, ROOT, command
from tests.flow.test_optimizer_resume import OPTIMIZERS, engines_of
from tests.plans import suite

pytest.importorskip("torch")
pytest.importorskip("deepspeed")
pytest.importorskip("pytorch_optimizer")
pytest.importorskip("schedulefree")

ENGINES = ["ddp", "fsdp", *(f"{{kind: deepspeed, stage: {stage}}}" for stage in range(4))]
LOCAL = ["{kind: local-sgd, every: 4}"]
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "clipped": {"gradient_clip": 0.5, "schedule": "{kind: cosine}"},
    "batch-norm": {"workload": "{kind: digits, norm: batch}", "batch": "{global: 64}"},
    "dropout": {"workload": "{kind: text, context: 32, layers: 1, width: 32, heads: 2, dropout: 0.1}",
                "batch": "{global: 64, accumulation: 2}", "evaluate_every": 6400, "gradient_clip": 1.0,
                "optimizer": "{kind: adamw, lr: 0.01, betas: [0.9, 0.95], decay: weights}",
                "stop": "{metric: val_loss, target: 0.5, max_epochs: 1}"},
    "factors": {"workload": "{kind: digits-mlp, hidden: 64}",
                "engines": ["ddp", "{kind: ddp, send: layerwise, sufficient_factors: all}"]},
    "kfac": {"preconditioner": "{kind: kfac}", "engines": ["ddp", "{kind: deepspeed, stage: 0}"]},
    "ragged sequences": {"workload": "{kind: random-layers, ragged: true}", "batch": "{global: 64, accumulation: 2}",
                         "evaluate_every": 256, "gradient_clip": 1.0,
                         "stop": "{metric: loss, target: 0.1, max_epochs: 8}"},
    "ragged blocks": {"workload": "{kind: digits, norm: group}", "batch": "{global: 48, accumulation: 3}",
                      "evaluate_every": 500, "gradient_clip": 5},
}
RULES = OPTIMIZERS | {"sgd": "{kind: sgd, lr: 0.05, momentum: 0.9, nesterov: true}",
                      "adamw": "{kind: adamw, lr: 0.003, decay: weights}"}
SEEDS = (7, 8, 9)
FORMATS = ("bf16-autocast", "fp16-autocast", "bf16-master", "fp16-master")


def run(folder: Path, seed: int, engines: list[str], **trial: Any) -> list[tuple[str, StepsAgain, list[RankLedger]]]:
    """Run one trial of each engine; return labels, steps after the trials and ledgers, once nothing is held against
    them."""
    (folder / "suite.yaml").write_text(suite(
        "healthy", f"matrix:\n  engine: [{', '.join(engines)}]\n", head=f"master_seed: {seed}\n", engine=None,
        processes=2, timeout_seconds=300, gate="{skip: trials are tested}", **{
            "workload": "{kind: digits, norm: group}", "batch": "{global: 32, accumulation: 2}",
            "optimizer": "{kind: sgd, lr: 0.05, momentum: 0.9, weight_decay: 0.01}", "evaluate_every": 640,
            "stop": "{metric: top1, target: 0.99, max_epochs: 3}"} | trial))
    ended = command(folder, "run", "suite.yaml", "--no-mlflow", "--out", "run",
                    PYTHONPATH=f"{ROOT}{os.pathsep}{PLUGINS}")
    assert "Traceback" not in ended.error and ended.code in (0, 3), ended.error  # 3: the target was missed
    record = read_record(folder / "run")
    found = []
    for result in record.results:
        label = record.cell(result.cell_id).label
        assert result.status in ("ok", "missed"), (label, result.reason)
        log = TrialLog(read_log(record.folder.log(result.trial_id, 1)))
        again, kept = log.last(schema.StepsRepeated), log.last(schema.LedgerKept)
        assert again is not None and kept is not None and not again.value.problem, (label, again)
        assert not [note for rank in kept.value for note in rank.notes], label
        found.append((label, again.value, [*kept.value]))
    assert len(found) == len(engines)
    return found


def compares_what_is_stepped(found: tuple[str, StepsAgain, list[RankLedger]]) -> bool:
    within = found[1].within
    return bool(within) and all("stepped" in {item.what for item in step.apart} for step in within)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", list(RULES))
def test_every_update_rule(tmp_path: Path, name: str, seed: int) -> None:
    engines = engines_of(name) if name in OPTIMIZERS else ENGINES
    found = run(tmp_path, seed, engines, optimizer=RULES[name], gradient_clip=0.5,
                workload="{kind: digits-mlp, hidden: 64}")
    assert all(again.updates and again.steps for _, again, _ in found)  # one, where a busy machine has no time for more
    assert all(map(compares_what_is_stepped, found))


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("precision", FORMATS)
@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_every_format(tmp_path: Path, precision: str, name: str, seed: int) -> None:
    engines = ["ddp", "fsdp", "{kind: deepspeed, stage: 0}"]
    if not precision.startswith("fp16"):
        engines += [f"{{kind: deepspeed, stage: {stage}}}" for stage in (1, 2, 3)]
    elif precision == "fp16-master":
        engines.pop()
    found = run(tmp_path, seed, engines, optimizer=RULES[name], precision=precision)
    # A kept step may be one whose scaled gradients overflowed.
    assert precision.startswith("fp16") or all(map(compares_what_is_stepped, found))


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("shape", list(SHAPES))
def test_every_shape_of_training(tmp_path: Path, shape: str, seed: int) -> None:
    run(tmp_path, seed, **{"engines": ENGINES + LOCAL} | SHAPES[shape])
