"""Where a model is while an engine starts: those that divide the weights never hold all of them on the device."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

from repro.comm.algorithms.backend import Backend
from repro.core.random_streams import Streams
from repro.engines.deepspeed_zero import DeepSpeedZero
from repro.engines.precisions import Bf16Master
from repro.engines.torch_engines import Ddp, Fsdp, Single
from repro.optimizers.rules import AdamW
from repro.seams.training import Engine, Job
from tests.commands import free_port
from tests.engine_ranks import build_parts

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")
deepspeed = pytest.importorskip("deepspeed")

SEEN: dict[str, Any] = {}


class Watching(AdamW):
    """Notes what the optimizer is built of."""

    def build(self, named_parameters: Iterable[tuple[str, Any]]) -> Any:
        named = list(named_parameters)
        SEEN["shapes"] = {name: tuple(parameter.shape) for name, parameter in named}
        SEEN["bytes"] = sum(parameter.untyped_storage().nbytes() for _, parameter in named)
        return super().build(named)


@pytest.mark.filterwarnings("ignore")  # of DeepSpeed, when it is imported
@pytest.mark.parametrize(("engine", "whole"), [
    (Single(), True), (Ddp(), True), (DeepSpeedZero(stage=2), True), (DeepSpeedZero(stage=3), False), (Fsdp(), False),
], ids=str)
def test_only_engines_that_keep_all_weights_move_the_whole_model(
    monkeypatch: pytest.MonkeyPatch, engine: Engine, whole: bool
) -> None:
    parts, moved, initialize = build_parts(batch_norm=True), [], deepspeed.initialize
    shapes = {name: tuple(parameter.shape) for name, parameter in parts.model.named_parameters()}
    move = torch.nn.Module.to

    def to(module: Any, *args: Any, **options: Any) -> Any:
        if module is parts.model and sum(item.numel() for item in module.parameters()):
            moved.append(args)
        return move(module, *args, **options)

    def started(*args: Any, **options: Any) -> Any:
        SEEN["left"] = sum(parameter.numel() for parameter in options["model"].parameters())
        return initialize(*args, **options)

    monkeypatch.setattr(torch.nn.Module, "to", to)
    monkeypatch.setattr(deepspeed, "initialize", started)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setenv("LOCAL_RANK", os.environ.get("LOCAL_RANK", "0"))
    SEEN.clear()
    job = Job(0, 1, "cpu", 4, 1, None, Bf16Master(), Watching(lr=0.01), Backend())
    session = engine.start(parts, job, Streams(1, 0))
    try:
        assert bool(moved) == whole
        assert SEEN["shapes"] == shapes  # which parameters have no weight decay depends on them
        if engine == DeepSpeedZero(stage=3):
            assert SEEN["left"] == 0
            assert SEEN["bytes"] == 4 * len(shapes)
    finally:
        session.close()
