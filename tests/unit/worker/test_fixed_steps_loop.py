"""Blocks, timed steps and the end of a trial of a fixed number of steps; the figures of its model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from repro.core.random_streams import Streams
from repro.record.environment.gpus import stated_peak
from repro.suite.model import Trial
from repro.worker.main import build
from repro.worker.report import model_report
from repro.worker.report.final_report import waited_and_stepped
from repro.worker.serve import sample_grid
from repro.worker.setup import RankPlace, TrialContext, block_steps, meta_twin
from repro.worker.stop_rule import decide_steps
from repro.workloads.digits import Digits
from repro.workloads.imagenet import ImageNetSynthetic
from tests.commands import free_port
from tests.unit.record.test_training_figures import trial


@pytest.mark.parametrize(("stop", "blocks"), [
    ({"steps": 7, "warmup": 3}, [3, 7]), ({"steps": 7}, [7]), ({"steps": 1, "warmup": 1}, [1, 1])])
def test_warm_up_is_a_block_of_its_own_and_the_timed_steps_are_one(stop: dict[str, int], blocks: list[int]) -> None:
    choices = trial(**stop).training
    ends = sample_grid(choices)
    assert [block_steps(choices, step) for step in (0, *ends[:-1])] == blocks and ends[-1] == choices.budget_steps


def test_waiting_for_input_in_the_warm_up_does_not_count() -> None:
    steps, whole = [[1.0, 1.0], [2.0, 2.0]], [[9.0, 1.5], [2.25, 2.5]]
    assert waited_and_stepped(steps, whole, 2) == [0.75, 4.0]
    assert waited_and_stepped(steps, whole, 0) == [9.25, 6.0]


def test_it_ends_at_its_last_step_or_at_a_loss_that_is_not_finite() -> None:
    assert decide_steps(3, 10, finite=True) is None
    ended, diverged = decide_steps(10, 10, finite=True), decide_steps(3, 10, finite=False)
    assert ended is not None and ended.outcome == "success"
    assert diverged is not None and diverged.outcome == "diverged" and "step 3" in diverged.reason


def described(monkeypatch: pytest.MonkeyPatch, devices: list[str], **precision: Any) -> dict[str, Any]:
    """What rank 0 logs of its model on these devices."""
    monkeypatch.setattr(model_report.devices, "name_of", lambda device: devices[0])
    parts = Digits().build(Streams(1, 0), "cpu")
    made = SimpleNamespace(
        session=SimpleNamespace(gather=lambda value: devices), parts=parts, workload=Digits(),
        started=SimpleNamespace(twin=meta_twin(parts.model)), job=SimpleNamespace(
            device="cpu" if devices[0] == "cpu" else "cuda:0",
            precision=SimpleNamespace(**{"tf32": False, "autocast": None, "weights": "float32", **precision})))
    found = model_report.describe_model(cast(TrialContext, made))
    assert found is not None and found.parameters == sum(item.numel() for item in parts.model.parameters())
    return found


@pytest.mark.parametrize(("precision", "number_format"), [
    ({}, "float32"), ({"tf32": True}, "tf32"), ({"autocast": "bfloat16"}, "bfloat16"),
    ({"weights": "float16"}, "float16")])
def test_the_peak_is_that_of_the_format_of_its_products(
    monkeypatch: pytest.MonkeyPatch, precision: dict[str, Any], number_format: str
) -> None:
    device = "NVIDIA A100-SXM4-80GB"
    found, peak = described(monkeypatch, [device] * 2, **precision), stated_peak(device, number_format)
    assert peak is not None and found.peak_flops == peak.flops
    assert found.peak_source.startswith(number_format) and found.why == ""


def test_samples_of_several_shapes_have_no_one_number_of_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = ImageNetSynthetic(samples=64, held_out=32, classes=4, model="alexnet_bn", resizing=((0, 128), (1, 224)))
    assert sizes.build(Streams(1, 0), "cpu").unlike_samples
    build = Digits.build
    monkeypatch.setattr(Digits, "build", lambda *given: replace(build(*given), unlike_samples=True))
    found = described(monkeypatch, ["NVIDIA L4"])
    assert found.forward_flops is None
    assert found.why == model_report.UNLIKE


@pytest.mark.parametrize(("devices", "why"), [
    (["cpu", "cpu"], "no peak is stated for a processor"),
    (["Some GPU"], "no stated peak of Some GPU for float32 is known"),
    (["NVIDIA L4", "NVIDIA H200"], "ranks ran on different devices: NVIDIA H200, NVIDIA L4")])
def test_without_a_peak_the_log_says_why(monkeypatch: pytest.MonkeyPatch, devices: list[str], why: str) -> None:
    found = described(monkeypatch, devices)
    assert (found.peak_flops, found.why) == (None, why)
    assert found.forward_flops > 0


def test_a_model_that_cannot_be_copied_costs_the_figure_and_not_the_trial() -> None:
    class Stubborn(torch.nn.Module):
        def __deepcopy__(self, memo: object) -> torch.nn.Module:
            raise RuntimeError("no copies\nof me")

    found = meta_twin(Stubborn())
    assert found == "the model cannot be copied: no copies | of me"


CHOICES: dict[str, Any] = {
    "workload": "digits-mlp", "batch": {"global": 32, "accumulation": 2}, "optimizer": {"kind": "sgd", "lr": 0.1},
    "evaluate_every": 160, "stop": {"metric": "top1", "target": 1.0, "max_epochs": 1, "design": "fixed_budget"},
    "gradient_clip": 1.0, "device": "cpu",
}
READS = ("item", "tolist", "numpy", "cpu", "__float__", "__int__", "__bool__", "__index__")
"""Each of them waits for a device."""


def reading_mode() -> Any:
    """A mode that counts reads in torch's own code."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        reads = 0

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.reads += function is torch.ops.aten._local_scalar_dense.default
            return function(*args, **(kwargs or {}))

    return Mode()


@pytest.mark.parametrize("engine", ["single", "ddp"])
def test_nothing_is_read_back_in_a_timed_step(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    trial = Trial.model_validate({"suite": "s", "suite_digest": "d", "repeat": 0, "master_seed": 1,
                                  "choices": {**CHOICES, "engine": engine}})
    loop = build(trial, RankPlace(0, 1, 0), tmp_path / "log.txt", {"launched_ns": 0})
    try:
        loop.start()
        steps, mode = loop.steps, reading_mode()
        steps.begin_block(3)
        with monkeypatch.context() as patch, mode:
            for name in READS:
                patch.setattr(torch.Tensor, name, lambda self, *_, name=name: pytest.fail(f"{name} in a timed step"))
            losses = [steps.train_step() for _ in range(3)]
        assert mode.reads == 0
        steps.log_block(losses)
        assert len(steps.losses) == 3 and all(0 < loss < 10 for loss in steps.losses)
        with mode:
            losses[0].item()
        assert mode.reads == 1, "the mode sees what it is for"
    finally:
        loop.close()
