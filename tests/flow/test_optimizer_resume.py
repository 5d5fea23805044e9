"""Every optimizer resumes after a kill with the bits of an undisturbed trial, in every engine that carries it out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.flow.test_checkpoints import alone, begin, compare, fail_once, hashes
from tests.optimizer_cases import ENGINES

pytest.importorskip("torch")
pytest.importorskip("pytorch_optimizer")
pytest.importorskip("schedulefree")

pytestmark = pytest.mark.slow

__all__ = ["alone"]
OPTIMIZERS = {
    "adam": "{kind: adam, lr: 0.002}",
    "rmsprop": "{kind: rmsprop, lr: 0.001, momentum: 0.5}",
    "adaptahead": "{kind: adaptahead, lr: 0.0005}",
    "lars": "{kind: lars, lr: 2, weight_decay: 0.001}",
    "lamb": "{kind: lamb, lr: 0.005}",
    "lion": "{kind: lion, lr: 0.0003}",
    "muon": "{kind: muon, lr: 0.01, adamw_lr: 0.002}",
    "soap": "{kind: soap, lr: 0.002, largest_dimension: 64, basis_every: 3}",
    "shampoo": "{kind: shampoo, lr: 0.01, roots_every: 2}",
    "schedule-free-sgd": "{kind: schedule-free-sgd, lr: 0.1}",
    "schedule-free-adamw": "{kind: schedule-free-adamw, lr: 0.002}",
}
KINDS = {"Ddp": "ddp", "Fsdp": "fsdp", "DeepSpeedZero": "{{kind: deepspeed, stage: {stage}}}"}


def more(name: str, engines: list[str], extra: str = "") -> str:
    # A narrow model: the factors of Shampoo are as large as its layers, and each is decomposed.
    size = "  workload: [{kind: digits-mlp, hidden: 48}]\n"
    return f"  optimizer: {OPTIMIZERS[name]}\n{extra}matrix:\n{size}  engine: [{', '.join(engines)}]\n"


def engines_of(name: str) -> list[str]:
    return [KINDS[type(engine).__name__].format(stage=getattr(engine, "stage", "")) for engine in ENGINES[name]]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_kill_leaves_no_trace_under_any_optimizer(tmp_path: Path, name: str) -> None:
    pytest.importorskip("deepspeed")
    extra = "  stop.max_epochs: [5]\n"  # lasts, so that every trial can be killed
    kills, resumed = compare(tmp_path, 2, more(name, engines_of(name)) + extra, seeds=1)
    print(f"{name}: {kills} kills, {resumed} trials resumed from a checkpoint, all hashes equal")
    assert resumed >= 1 and kills >= resumed


@pytest.mark.parametrize("precision", ["bf16-master", "fp16-autocast"])
@pytest.mark.parametrize("name", ["lars", "muon", "soap", "schedule-free-adamw"])
def test_so_does_it_with_16_bits(tmp_path: Path, name: str, precision: str) -> None:
    engines = ["ddp", "fsdp"] if name != "soap" else ["ddp"]
    extra = f"  stop.max_epochs: [5]\n  precision: [{precision}]\n"
    kills, resumed = compare(tmp_path, 2, more(name, engines) + extra, seeds=1)
    assert resumed >= 1 and kills >= resumed


QUICK = ("soap", "schedule-free-adamw", "lamb")


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow)
                                            for name in OPTIMIZERS if name not in QUICK)])
def test_a_failed_trial_resumes_in_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """State in lists, counters in groups, a step count of each tensor: the trial fails, its parts are built again."""
    from repro.engines.plain.session import TorchSession

    text = more(name, ["single"], "  launcher: inline\n")
    whole = begin(tmp_path / "whole", 1, text).execute()
    fail_once(monkeypatch, TorchSession, "micro_loss", 40)
    record = begin(tmp_path / "failed", 1, text).execute()
    assert [(item.status, bool(item.resumed_from)) for item in record.attempts] == [
        ("crashed", False), ("missed", True)], [item.reason for item in record.attempts]
    assert hashes(record) == hashes(whole)
