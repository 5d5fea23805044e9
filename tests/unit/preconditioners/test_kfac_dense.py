"""K-FAC against a dense computation in float64: factors from the gradients of single samples, the explicit inverse of
the Kronecker product, the KL clip by its formula.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from repro.core.errors import TrialError
from repro.papers.kfac.kfac import Kfac
from repro.seams.preconditioner import Place

torch = pytest.importorskip("torch")
nn = torch.nn

RATE = 0.05
SAMPLES = 6
Observed = list[list[Any]]


class Projections(nn.Module):
    """One fused projection for query, key and value, as in the GPT of the package, and one for the output."""

    def __init__(self) -> None:
        super().__init__()
        self.query_key_value, self.project = nn.Linear(4, 12), nn.Linear(4, 4)

    def forward(self, stream: Any) -> Any:
        query, key, value = self.query_key_value(stream).split(4, dim=-1)
        return self.project(nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)).mean(1)


MODELS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3, bias=False)), (5,)),
    "sequences": (lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3), nn.Flatten(), nn.Linear(6, 3)),
                  (2, 5)),
    "attention": (Projections, (3, 4)),
    "conv1d": (lambda: nn.Sequential(nn.Conv1d(2, 3, 3, stride=2, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(9, 3)),
               (2, 6)),
    "conv2d": (lambda: nn.Sequential(nn.Conv2d(2, 3, (3, 2), padding=(1, 0), dilation=(1, 2), bias=False), nn.Tanh(),
                                     nn.Conv2d(3, 2, 2, padding="same", padding_mode="reflect"), nn.Flatten(),
                                     nn.Linear(32, 3)), (2, 4, 6)),
}


def made(name: str) -> tuple[Any, Any, Any]:
    """Return (model, inputs, targets); the same in every call."""
    torch.manual_seed(3)
    build, shape = MODELS[name]
    return build(), torch.randn(SAMPLES, *shape), torch.arange(SAMPLES) % 3


def gradients_of(model: Any) -> dict[str, Any]:
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def observed(model: Any, inputs: Any, targets: Any) -> tuple[list[Any], Observed, Observed]:
    """Return the layers, and for each the unfolded inputs and the output gradients of every single sample's loss."""
    layers = [module for module in model.modules() if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d)]
    seen: dict[int, tuple[Any, Any]] = {}

    def keep(layer: Any, args: Any, output: Any) -> None:
        output.retain_grad()
        seen[id(layer)] = (args[0].detach(), output)

    handles = [layer.register_forward_hook(keep) for layer in layers]
    rows, slopes = [[] for _ in layers], [[] for _ in layers]
    for sample, target in zip(inputs, targets, strict=True):
        nn.functional.cross_entropy(model(sample[None]), target[None]).backward()
        for place, layer in enumerate(layers):
            given, output = seen[id(layer)]
            rows[place].append(unfolded(layer, given))
            slopes[place].append(output.grad[0].reshape(output.shape[1], -1).T.numpy() if conv(layer)
                                 else output.grad.reshape(-1, output.shape[-1]).numpy())
    for handle in handles:
        handle.remove()
    return layers, rows, slopes


def conv(layer: Any) -> bool:
    return not isinstance(layer, nn.Linear)


def unfolded(layer: Any, given: Any) -> np.ndarray:
    """Return [positions, inputs] of one sample, by convolving with every unit kernel."""
    if not conv(layer):
        found = given.reshape(-1, given.shape[-1]).numpy()
    else:
        count = layer.weight[0].numel()
        units = torch.eye(count, dtype=given.dtype).reshape(count, *layer.weight.shape[1:])
        found = layer._conv_forward(given, units, None)[0].reshape(count, -1).T.detach().numpy()
    return np.hstack([found, np.ones((len(found), 1))]) if layer.bias is not None else found


def dense_factors(rows: list[Any], slopes: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    a = np.mean([row.T @ row / len(row) for row in rows], axis=0)
    return a, np.mean([slope.T @ slope for slope in slopes], axis=0)


def matrix_of(layer: Any) -> np.ndarray:
    weight = layer.weight.grad.reshape(len(layer.weight), -1)
    return torch.hstack([weight, layer.bias.grad[:, None]] if layer.bias is not None else [weight]).double().numpy()


def dense_result(a: np.ndarray, g: np.ndarray, gradient: np.ndarray, options: Kfac) -> np.ndarray:
    """Return the damped inverse of the Kronecker product times the gradient, every matrix written out."""
    if options.inverse == "eigen":
        whole = np.kron(g, a) + options.damping * np.eye(len(a) * len(g))
    else:
        whole = np.kron(g + options.damping * np.eye(len(g)), a + options.damping * np.eye(len(a)))
    return np.linalg.solve(whole, gradient.reshape(-1)).reshape(gradient.shape)


def trained_once(name: str, options: Kfac, accumulation: int = 1, scale: float = 1.0) -> tuple[Any, Any]:
    """Return (model with preconditioned gradients, what runs) after one step on all samples."""
    model, inputs, targets = made(name)
    running = options.attach(model, Place(0, 1, "cpu", accumulation))
    for part, labels in zip(inputs.chunk(accumulation), targets.chunk(accumulation), strict=True):
        with running.observing():
            loss = nn.functional.cross_entropy(model(part), labels)
        (loss * scale / accumulation).backward()
    running.apply(gradients_of(model), RATE, scale)
    return model, running


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("inverse", ["eigen", "direct"])
@pytest.mark.parametrize("kl_clip", [None, 1e-4])
def test_factors_and_preconditioned_gradients_equal_a_dense_computation(
    name: str, inverse: str, kl_clip: float | None
) -> None:
    options = Kfac(inverse=inverse, kl_clip=kl_clip, damping=0.01)
    model, inputs, targets = made(name)
    double = model.double()
    layers, rows, slopes = observed(double, inputs.double(), targets)
    double.zero_grad()
    nn.functional.cross_entropy(double(inputs.double()), targets).backward()
    factors = [dense_factors(*of) for of in zip(rows, slopes, strict=True)]
    wanted = [dense_result(a, g, matrix_of(layer), options) for (a, g), layer in zip(factors, layers, strict=True)]
    change = sum(float((v * matrix_of(layer)).sum()) for v, layer in zip(wanted, layers, strict=True)) * RATE**2
    nu = 1.0 if kl_clip is None else min(1.0, (kl_clip / change) ** 0.5)
    assert (nu < 1) == (kl_clip is not None), "the clip must bite where there is one"

    changed, running = trained_once(name, options)
    matrices = running.factors.matrices()
    changed_layers = [module for module in changed.modules() if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d)]
    for place, (a, g) in enumerate(factors):
        np.testing.assert_allclose(matrices[2 * place].numpy(), a, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(matrices[2 * place + 1].numpy(), g, rtol=1e-4, atol=1e-7)
        largest = np.abs(wanted[place]).max()
        np.testing.assert_allclose(matrix_of(changed_layers[place]) / largest, nu * wanted[place] / largest, atol=2e-4)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("accumulation", "scale"), [(3, 1.0), (1, 1024.0), (2, 65536.0)])
def test_micro_batches_and_loss_scales_change_nothing(name: str, accumulation: int, scale: float) -> None:
    options = Kfac(kl_clip=1e-4)
    plain, scaled = trained_once(name, options), trained_once(name, options, accumulation, scale)
    for ours, theirs in zip(scaled[1].factors.matrices(), plain[1].factors.matrices(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-7)
    for parameter, other in zip(scaled[0].parameters(), plain[0].parameters(), strict=True):
        torch.testing.assert_close(parameter.grad / scale, other.grad, rtol=2e-3, atol=1e-4)


def test_the_running_average_starts_at_the_first_estimate_and_forgets_by_the_declared_weight() -> None:
    options = Kfac(factor_decay=0.6, eigen_every=1)
    model, inputs, targets = made("linear")
    running = options.attach(model, Place(0, 1, "cpu", 1))
    seen, average = [], None
    for update in range(1, 5):
        part = inputs * update
        with running.observing():
            loss = nn.functional.cross_entropy(model(part), targets)
        model.zero_grad()
        loss.backward()
        running.apply(gradients_of(model), RATE, 1.0)
        ones = torch.hstack([part, torch.ones(SAMPLES, 1)])
        seen.append(ones.T @ ones / SAMPLES)
        past = min(1 - 1 / update, 0.6)
        average = seen[-1] if average is None else past * average + (1 - past) * seen[-1]
        torch.testing.assert_close(running.factors.matrices()[0], average)
    assert running.counts() == {"step": 4, "updates": 4, "decompositions": 4}


def test_periods_count_steps() -> None:
    model, inputs, targets = made("linear")
    running = Kfac(factor_every=2, eigen_every=4).attach(model, Place(0, 1, "cpu", 1))
    found = []
    for _ in range(9):
        with running.observing():
            loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        running.apply(gradients_of(model), RATE, 1.0)
        found.append((running.factors.updates, running.decompositions))
    assert found == [(1, 1), (1, 1), (2, 1), (2, 1), (3, 2), (3, 2), (4, 2), (4, 2), (5, 3)]


def test_evaluations_and_repeated_passes_are_not_observed() -> None:
    model, inputs, targets = made("conv2d")
    running = Kfac().attach(model, Place(0, 1, "cpu", 1))
    nn.functional.cross_entropy(model(inputs), targets).backward()  # outside of `observing`
    assert not running.factors._sums.any()
    with running.observing():
        nn.functional.cross_entropy(model(inputs), targets).backward()
    assert running.factors._sums.any()


def test_an_overflow_leaves_the_factors_and_the_next_step_decomposes() -> None:
    model, inputs, targets = made("linear")
    running = Kfac(factor_every=3, eigen_every=6).attach(model, Place(0, 1, "cpu", 1))

    def step(factor: float) -> None:
        model.zero_grad()
        with running.observing():
            loss = nn.functional.cross_entropy(model(inputs), targets)
        (loss * factor).backward()
        running.apply(gradients_of(model), RATE, 1.0)

    step(float("inf"))
    assert running.counts() == {"step": 1, "updates": 0, "decompositions": 0}
    step(1.0)
    assert running.counts() == {"step": 2, "updates": 1, "decompositions": 1}
    step(1.0)
    before = running.factors.averages.clone()
    step(float("nan"))  # a factor step
    assert torch.equal(running.factors.averages, before)


def test_at_rate_0_nothing_is_clipped() -> None:
    model, _ = trained_once("linear", Kfac(kl_clip=1e-12))
    again, inputs, targets = made("linear")
    other = Kfac(kl_clip=1e-12).attach(again, Place(0, 1, "cpu", 1))
    with other.observing():
        nn.functional.cross_entropy(again(inputs), targets).backward()
    other.apply(gradients_of(again), 0.0, 1.0)
    assert float(again[0].weight.grad.norm()) > 100 * float(model[0].weight.grad.norm()) > 0


# ---- which layers


def test_layers_that_are_no_one_matrix_keep_their_gradient() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.grouped, self.norm = nn.Conv2d(2, 2, 1, groups=2), nn.GroupNorm(1, 2)
            self.first, self.tied = nn.Linear(2, 2), nn.Linear(2, 2)
            self.tied.weight = self.first.weight
            self.attention, self.wide = nn.MultiheadAttention(2, 1), nn.Linear(2, 50)
            self.frozen, self.unbiased = nn.Linear(2, 2), nn.Linear(2, 2)
            self.frozen.weight.requires_grad_(False)
            self.unbiased.bias.requires_grad_(False)

    running = Kfac(largest_factor=49).attach(Mixed(), Place(0, 1, "cpu", 1))
    assert [(layer.weight, layer.bias) for layer in running.layers] == [("unbiased.weight", None)]
    assert running.effective() == {
        "preconditioner": "K-FAC", "preconditioned_layers": "1", "preconditioned_parameters": "4 of 196",
        "preconditioner_inverse": "eigen, damping 0.003", "preconditioner_placement": "opt: 1 of 1 ranks a layer",
        "preconditioner_periods": "factors every 1, decompositions every 10"}


def test_a_model_without_layers_is_refused() -> None:
    with pytest.raises(TrialError, match=r"^K-FAC would change nothing: the model has no Linear"):
        Kfac().attach(nn.GroupNorm(1, 2), Place(0, 1, "cpu", 1))


def test_a_layer_without_a_gradient_is_named() -> None:
    model = nn.ModuleDict({"used": nn.Linear(2, 2), "left": nn.Linear(2, 2)})
    running = Kfac().attach(model, Place(0, 1, "cpu", 1))
    with running.observing():
        model["used"](torch.ones(1, 2)).sum().backward()
    with pytest.raises(TrialError, match=r"a gradient of every layer in every step; left.weight got none"):
        running.apply(gradients_of(model), RATE, 1.0)
