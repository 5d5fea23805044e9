"""Compiled models, recomputed activations and channels_last train like the plain loop, under every engine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from repro.comm.algorithms.backend import Backend
from repro.core.random_streams import Streams
from repro.engines.deepspeed_zero import DeepSpeedZero
from repro.engines.precisions import Bf16Master, Fp32
from repro.engines.torch_engines import Ddp, Fsdp, Single
from repro.seams.plugin import Compilation, ModelOptions
from repro.seams.training import Engine, Job, Precision, TrainingParts
from tests.engine_ranks import SCATTERED, SGD, Case, Run, furthest, ranks, same_bytes

pytest.importorskip("torch")
pytest.importorskip("deepspeed")

__all__ = ["ranks"]
COMPILED = ModelOptions(compile=Compilation())
RECOMPUTED = ModelOptions(activation_checkpointing=True)
LAST = ModelOptions(channels_last=True)
slow = pytest.mark.slow
ENGINES = [Ddp(), pytest.param(Fsdp(), marks=slow), pytest.param(Fsdp(wrap="model"), marks=slow),
           pytest.param(DeepSpeedZero(stage=0), marks=slow), pytest.param(DeepSpeedZero(stage=2), marks=slow),
           pytest.param(SCATTERED, marks=slow)]


@pytest.mark.parametrize("engine", ENGINES, ids=str)
@pytest.mark.parametrize("model", [pytest.param(COMPILED, marks=slow), RECOMPUTED, LAST],
                         ids=lambda model: next(model.chosen()))
def test_training_is_the_plain_loops(ranks: Run, model: ModelOptions, engine: Ddp) -> None:
    plain = Case(engine, 2, 2, batch_norm=True, warm_up=True, steps=6)
    reference, found = ranks(plain), ranks(replace(plain, model=model))
    assert furthest(found[0]["weights"], reference[0]["weights"]) < 5e-6
    assert furthest(found[0]["buffers"], reference[0]["buffers"]) < 5e-6, "a repeated pass changes no buffer"
    assert all(same_bytes(rank["weights"], found[0]["weights"]) for rank in found)
    assert abs(found[0]["totals"][0] - reference[0]["totals"][0]) <= 1
    effective = found[0]["effective"]
    assert [effective[name] for name in ("activation_checkpointing", "channels_last")] == [
        "on" if getattr(model, name) else "off" for name in ("activation_checkpointing", "channels_last")]
    assert effective["compile"] == ("default, dynamic auto" if model.compile else "off")


@slow
@pytest.mark.parametrize("engine", [Single(), Ddp(), Fsdp(), DeepSpeedZero(stage=1), SCATTERED], ids=str)
def test_everything_is_compiled_before_the_first_timed_step(ranks: Run, engine: Ddp) -> None:
    world = 1 if isinstance(engine, Single) else 2
    found = ranks(Case(engine, world, 2, batch_norm=True, warm_up=True, steps=6, model=COMPILED))
    for rank in found:
        assert rank["compiled"]["graphs"] >= 2, "training and evaluation"
        assert rank["compiled"]["seconds"] > 0
        assert rank["late"]["graphs"] == 0
        assert rank["late"]["seconds"] == 0
        assert rank["effective"]["compile_cache"] == "cold"


@dataclass(frozen=True)
class Colours:
    """Steps of a net whose images have three channels, in memory format channels_last: of one channel both are one."""

    engine: Engine
    precision: Precision
    world: int = 2

    def train(self, rank: int) -> dict[str, Any]:
        import torch
        from torch import nn

        def unused(*_: Any) -> Any:
            raise AssertionError

        def batch(count: int) -> Any:
            return torch.randn(count, 3, 6, 6, generator=draws), torch.zeros(count, dtype=torch.long)

        torch.manual_seed(3)
        draws = torch.Generator().manual_seed(rank)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.SiLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(32, 10))
        parts = TrainingParts(model, nn.functional.cross_entropy, {}, unused, unused, batch, unused)
        job = Job(rank, self.world, "cpu", 4, 1, 0.1, self.precision, SGD, Backend(), model=LAST)
        session = self.engine.start(parts, job, Streams(1, 0))
        try:
            session.warm_up([batch(4)])
            for _ in range(3):
                session.step([batch(4)], 0.1)
            return {"weights": session.weights(), "last": session.effective()["channels_last_weights"]}
        finally:
            session.close()


@pytest.mark.parametrize("precision", [Fp32(), pytest.param(Bf16Master(), marks=slow)], ids=lambda item: item.title)
def test_convolutions_of_zero_0_have_the_memory_format_of_those_of_ddp(ranks: Any, precision: Precision) -> None:
    """Otherwise cuDNN copies their weights in every step of DeepSpeed, and of DeepSpeed alone."""
    reference, found = (ranks(Colours(engine, precision))[0] for engine in (Ddp(), DeepSpeedZero(stage=0)))
    assert reference["last"] == found["last"] == "2 of 2"
    assert furthest(found["weights"], reference["weights"]) < 5e-6
