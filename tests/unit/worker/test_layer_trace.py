"""Where a step begins to differ: the first layer, forwards, then backwards."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from repro.engines.precisions import Fp32
from repro.record.result.step_causes import Place, names_of, place_cause, score_cause
from repro.worker.report.layer_trace import LayerTrace, first_place, where_it_begins

Change = Callable[[torch.nn.Sequential], None]


class Leaking(torch.autograd.Function):
    """ReLU whose gradient leaks a little where it is off."""

    @staticmethod
    def forward(context: Any, inputs: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(inputs)
        return inputs.relu()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        inputs, = context.saved_tensors
        return torch.where(inputs > 0, gradient, 0.05 * gradient)


def build() -> torch.nn.Sequential:
    torch.manual_seed(3)
    body = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.GroupNorm(2, 4), torch.nn.ReLU(inplace=True))
    return torch.nn.Sequential(body, torch.nn.Flatten(), torch.nn.Dropout(0.2), torch.nn.Linear(144, 10))


def train(model: torch.nn.Module, factor: float = 1.0, smoothing: float = 0.0, calls: int = 2) -> LayerTrace:
    """Compute gradients of micro-batches, `factor` times as large."""
    trace, generator = LayerTrace(model), torch.Generator().manual_seed(4)
    torch.manual_seed(5)
    with trace.watching():
        for _ in range(calls):
            inputs = torch.randn(6, 1, 8, 8, generator=generator)
            targets = torch.randint(0, 10, (6,), generator=generator)
            (factor * functional.cross_entropy(model(inputs), targets, label_smoothing=smoothing)).backward()
    return trace


def replaced(function: Callable[[Any], Any], layer: int) -> Change:
    def change(model: torch.nn.Sequential) -> None:
        body: Any = model[0]
        body[layer].forward = function

    return change


def scaled_norm(inputs: torch.Tensor) -> torch.Tensor:
    return 1.001 * functional.group_norm(inputs, 2)


def begins(model: torch.nn.Module, right: torch.nn.Module) -> Place | None:
    """Where a step begins to differ; by how much is left out."""
    found = where_it_begins(train(model), train(right), Fp32())
    assert found is not None and (found.apart > 0) == (found.at == "output")
    return found.model_copy(update={"apart": 0.0})


@pytest.mark.parametrize(("change", "place"), [
    (replaced(scaled_norm, 1), Place(at="output", layer="0.1", kind="GroupNorm")),
    (replaced(lambda inputs: Leaking.apply(inputs), 2), Place(at="backward", layer="0.2", kind="ReLU")),
    (lambda model: model[2].eval(), Place(at="output", layer="2", kind="Dropout")),
    (lambda model: model[3].bias.data.add_(0.01), Place(at="output", layer="3", kind="Linear")),
    (lambda model: model[1].register_forward_hook(lambda *call: 1.01 * call[2]),
     Place(at="input", layer="2", kind="Dropout")),
    (lambda model: model[0].register_forward_pre_hook(lambda _, inputs: (inputs[0] + 0.01,)),
     Place(at="input", layer="0.0", kind="Conv2d")),
    (lambda model: model.register_forward_pre_hook(lambda _, inputs: (inputs[0] + 0.01,)), Place(at="samples")),
    (lambda model: model.register_forward_hook(lambda *call: 10 * torch.tanh(call[2] / 10)), Place(at="loss")),
    (lambda model: model[3].weight.register_hook(lambda gradient: 2 * gradient), Place(at="nowhere")),
], ids=["norm", "leak", "mode", "weights", "hook", "inputs", "samples", "outputs", "parameter"])
def test_the_first_layer_that_differs_is_named(change: Change, place: Place) -> None:
    model, right = build(), build()
    change(model)
    assert begins(model, right) == place


def test_a_scaled_loss_is_no_other_one_and_another_loss_is() -> None:
    right = train(build())
    assert where_it_begins(train(build(), factor=1024.0), right, Fp32()) == Place(at="nowhere")
    assert where_it_begins(train(build(), smoothing=0.1), right, Fp32()) == Place(at="loss")


def test_other_calls_of_the_layers_are_not_compared() -> None:
    right = train(build())
    assert where_it_begins(train(build(), calls=1), right, Fp32()) is None
    assert where_it_begins(LayerTrace(build()), right, Fp32()) is None


def test_a_wrapper_around_a_layer_is_passed_over() -> None:
    model = build()
    model[1] = torch.nn.Sequential(copy.deepcopy(model[1]))
    assert where_it_begins(train(model), train(build()), Fp32()) == Place(at="nowhere")


def test_a_micro_batch_and_a_rank_that_differ_alone_are_named() -> None:
    model, calls = build(), iter((1.0, 1.1))
    model[0].register_forward_hook(lambda *call: next(calls) * call[2])
    place = where_it_begins(train(model), train(build()), Fp32())
    assert place == Place(at="input", layer="1", kind="Flatten", turns=(1, 2))
    both = first_place([Place(at="nowhere"), place, place])
    assert both is not None and both.ranks == (1, 2) and first_place([place, place]) == place
    assert first_place([None, None]) is None and first_place([Place(at="nowhere")]) == Place(at="nowhere")
    assert place_cause(both, of_loss=True).endswith("; only in 1 of 2 micro-batches of ranks 1, 2")


def test_where_an_evaluation_begins_to_differ_has_words_of_its_own() -> None:
    def evaluate(model: torch.nn.Module, shift: float = 0.0, times: int = 2) -> LayerTrace:
        model.eval()
        trace, generator = LayerTrace(model), torch.Generator().manual_seed(4)
        with torch.no_grad(), trace.watching():
            for _ in range(times):
                model(torch.randn(6, 1, 8, 8, generator=generator) + shift)
        return trace

    def cause(theirs: LayerTrace) -> str:
        return score_cause("", where_it_begins(theirs, evaluate(build()), Fp32(), evaluated=True))

    averaged = build()
    averaged[3].weight.data.mul_(0.99)
    assert "the output of layer '3' (Linear)" in cause(evaluate(averaged))
    assert "the inputs of the model are the first to differ" in cause(evaluate(build(), 0.1))
    assert cause(evaluate(build())).startswith("the outputs of all layers are correct: the metric is another one")
    assert cause(LayerTrace(build())).startswith("the trained model was not called")
    assert cause(evaluate(build(), times=1)) == cause(evaluate(build())), "a rank may have fewer batches"


class Wrapper(torch.nn.Module):
    """Keeps a layer by an attribute that FSDP and activation checkpoints use."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self._checkpoint_wrapped_module = layer

    def forward(self, inputs: torch.Tensor) -> Any:
        return self._checkpoint_wrapped_module(inputs)


def test_a_layer_in_a_wrapper_keeps_its_name() -> None:
    model = build()
    model[3].bias.data.add_(0.01)
    model[3] = Wrapper(model[3])
    assert begins(model, build()) == Place(at="output", layer="3", kind="Linear")


def test_words_say_what_is_right_and_what_is_not() -> None:
    norm = Place(at="output", layer="5", kind="GroupNorm")
    assert place_cause(norm, of_loss=True).startswith("the output of layer '5' (GroupNorm) is the first to differ")
    slightly = place_cause(norm.model_copy(update={"apart": 0.0004}), of_loss=True)
    assert "differ, by 0.0004 of its norm: it is rounded or computed in another type, or has a slightly" in slightly
    nowhere = {of_loss: place_cause(Place(at="nowhere"), of_loss=of_loss) for of_loss in (True, False)}
    assert "the reported loss" in nowhere[True] and "added up, averaged, compressed or sent" in nowhere[False]
    assert names_of((), 0) == "" and names_of(("a", "b"), 2) == "; only in 'a', 'b'"
    assert names_of(("a", "b"), 5) == "; in 'a', 'b' and 3 more"
