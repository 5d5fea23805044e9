"""A timed step reads nothing back from the device, so that the host may run ahead of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from repro.suite.model import Trial
from repro.worker.main import build
from repro.worker.setup import RankPlace
from tests.engine_ranks import free_port

torch = pytest.importorskip("torch")
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
        steps.timer.start()
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
