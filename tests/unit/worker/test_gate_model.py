"""The gate's model: random layers are off or named, and nothing of it stays in a trial's model."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from repro.core.errors import TrialError  # noqa: E402
from repro.core.random_streams import Streams  # noqa: E402
from repro.seams.training import TrainingParts  # noqa: E402
from repro.seams.workload import call_model  # noqa: E402
from repro.worker.gate.model import prepare  # noqa: E402


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "plugins"))
    import random_layers

    yield random_layers.RandomLayers
    sys.modules.pop("random_layers")


def losses(parts: TrainingParts) -> list[float]:
    inputs, targets = parts.synthetic_batch(8)
    return [float(parts.loss(call_model(parts.model.train(), inputs), targets).detach()) for _ in range(2)]


def test_the_hook_turns_random_layers_off_in_the_gate_only(plugin: Any) -> None:
    trial, gate = (plugin().build(Streams(1, 0), "cpu") for _ in range(2))
    prepare(gate, 1, "cpu")
    assert losses(gate)[0] == losses(gate)[1]
    assert losses(trial)[0] != losses(trial)[1], "a trial trains with them"


def test_a_model_that_is_still_random_is_told_the_hook(plugin: Any) -> None:
    with pytest.raises(TrialError, match=r"still random in the gate.*TrainingParts\.without_randomness"):
        prepare(plugin(hook=False).build(Streams(1, 0), "cpu"), 1, "cpu")
    prepare(plugin(hook=False, drop=0.0).build(Streams(1, 0), "cpu"), 1, "cpu")


@pytest.mark.parametrize("draw", [lambda: torch.rand(()), lambda: random.random(), lambda: np.random.random()])
def test_small_noise_of_any_generator_is_found(draw: Any) -> None:
    class Noisy(torch.nn.Linear):
        def forward(self, value: Any) -> Any:
            return super().forward(value) * (1 + 1e-4 * float(draw()))

    # Two losses in float32 may be equal by chance: these are not.
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    with pytest.raises(TrialError, match="still random"):
        prepare(parts_of(Noisy(3, 1)), 1, "cpu")


def test_draws_without_effect_are_no_randomness_and_leave_no_trace() -> None:
    class Draws(torch.nn.Sequential):
        def forward(self, value: Any) -> Any:
            return super().forward(value) + 0 * torch.rand(()) * random.random()

    model = Draws(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1)).eval()
    before = torch.get_rng_state(), random.getstate()
    prepare(parts_of(model), 1, "cpu")
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert int(model[1].num_batches_tracked) == 0
    assert torch.equal(model[1].running_mean, torch.zeros(4))
    assert not model.training


def parts_of(model: Any) -> TrainingParts:
    def unused(*_: Any) -> Any:
        raise AssertionError

    batch = torch.arange(6.0).reshape(2, 3), torch.ones(2, 1)
    return TrainingParts(model, torch.nn.functional.mse_loss, {}, unused, unused, lambda n: batch, unused)
