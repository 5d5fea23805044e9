"""Steps of every optimizer against its formula written out by hand, in float64 on a matrix and a vector."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from repro.optimizers.rules import Adam, Lamb, Lars, Lion, RmsProp, ScheduleFreeAdamW, ScheduleFreeSgd, Sgd  # noqa: E402
from repro.papers.adaptahead.adaptahead import AdaptAhead  # noqa: E402
from repro.seams.training import Optimizer  # noqa: E402

RATES = (0.1, 0.07, 0.05, 0.0, 0.03, 0.02)
"""Of the steps: a rate inside of a momentum and one outside of it differ only where the rate changes."""
SHAPES = {"weight": (3, 4), "bias": (4,)}
Array = Any


def gradient(name: str, weight: Array) -> Array:
    """A smooth gradient that depends on the place; the vector has another one."""
    return np.sin(3 * weight) + (0.3 if name == "weight" else -0.2) + weight**2


def start() -> dict[str, Array]:
    draws = np.random.default_rng(3)
    return {name: draws.normal(size=shape) for name, shape in SHAPES.items()}


def run(optimizer: Optimizer, dtype: Any = None) -> dict[str, Array]:
    """The weights after a step at each of `RATES`."""
    dtype = dtype or torch.float64
    named = [(name, torch.nn.Parameter(torch.tensor(value, dtype=dtype))) for name, value in start().items()]
    made = optimizer.build(named)
    for rate in RATES:
        for group in made.param_groups:
            group["lr"] = rate
        for name, parameter in named:
            parameter.grad = torch.tensor(gradient(name, parameter.detach().double().numpy()), dtype=dtype)
        made.step()
    return {name: parameter.detach().double().numpy() for name, parameter in named}


def norm(array: Array) -> float:
    return math.sqrt(float((array**2).sum()))


Memory = dict[str, Any]
Step = Callable[[str, Array, Memory, float, int], Array]
"""(tensor, weights, what the rule keeps, rate, number of the step) -> new weights; zeros are kept at first."""


def stepped(rule: Step) -> dict[str, Array]:
    """The weights after a step of a formula at each of `RATES`."""
    found = start()
    for name in found:
        kept: Memory = dict.fromkeys("mvs", np.zeros(SHAPES[name]))
        for number, rate in enumerate(RATES, 1):
            found[name] = rule(name, found[name], kept, rate, number)
    return found


def lars(decay: float, everywhere: bool = False) -> Step:
    """You, Gitman and Ginsburg (2017), algorithm 1, momentum 0.9, trust coefficient 0.02."""
    def step(name: str, w: Array, kept: Memory, rate: float, _: int) -> Array:
        scaled = name == "weight" or everywhere
        g, beta = gradient(name, w), decay if scaled else 0.0
        local = 0.02 * norm(w) / (norm(g) + beta * norm(w)) if scaled else 1.0
        kept["v"] = 0.9 * kept["v"] + rate * local * (g + beta * w)
        return w - kept["v"]
    return step


def lamb(decay: float, everywhere: bool = False) -> Step:
    """You et al. (2020), algorithm 2, betas 0.9 and 0.99, epsilon 1e-6."""
    def step(name: str, w: Array, kept: Memory, rate: float, t: int) -> Array:
        scaled, g = name == "weight" or everywhere, gradient(name, w)
        kept["m"], kept["v"] = 0.9 * kept["m"] + 0.1 * g, 0.99 * kept["v"] + 0.01 * g**2
        u = (kept["m"] / (1 - 0.9**t)) / (np.sqrt(kept["v"] / (1 - 0.99**t)) + 1e-6) + (decay if scaled else 0.0) * w
        return w - rate * (norm(w) / norm(u) if scaled else 1.0) * u
    return step


def adaptahead(decay: float) -> Step:
    """Our reading of the paper: from the true weights `w - 0.8 v` to the place a where the gradient is taken."""
    def step(name: str, a: Array, kept: Memory, rate: float, _: int) -> Array:
        true, g = a - 0.8 * kept["v"], gradient(name, a) + decay * a
        kept["s"] = 0.95 * kept["s"] + 0.05 * g**2
        kept["v"] = 0.8 * kept["v"] - rate * g / np.sqrt(kept["s"] + 1e-4)
        return true + 1.8 * kept["v"]
    return step


def lion(decay: float) -> Step:
    """Chen et al. (2023), algorithm 2."""
    def step(name: str, w: Array, kept: Memory, rate: float, _: int) -> Array:
        g = gradient(name, w)
        sign, kept["m"] = np.sign(0.9 * kept["m"] + 0.1 * g), 0.99 * kept["m"] + 0.01 * g
        return w - rate * (sign + decay * w)
    return step


def adam(decay: float) -> Step:
    """Kingma and Ba (2015), algorithm 1, with the L2 term in the gradient."""
    def step(name: str, w: Array, kept: Memory, rate: float, t: int) -> Array:
        g = gradient(name, w) + decay * w
        kept["m"], kept["v"] = 0.9 * kept["m"] + 0.1 * g, 0.99 * kept["v"] + 0.01 * g**2
        return w - rate * (kept["m"] / (1 - 0.9**t)) / (np.sqrt(kept["v"] / (1 - 0.99**t)) + 1e-8)
    return step


def rmsprop(decay: float) -> Step:
    """Tieleman and Hinton (2012), with heavy-ball momentum and the L2 term in the gradient."""
    def step(name: str, w: Array, kept: Memory, rate: float, _: int) -> Array:
        g = gradient(name, w) + decay * w
        kept["s"] = 0.95 * kept["s"] + 0.05 * g**2
        kept["v"] = 0.5 * kept["v"] + g / (np.sqrt(kept["s"]) + 1e-8)
        return w - rate * kept["v"]
    return step


def nag(decay: float) -> Step:
    """Nesterov (1983) in torch's form."""
    def step(name: str, w: Array, kept: Memory, rate: float, _: int) -> Array:
        g = gradient(name, w) + decay * w
        kept["v"] = 0.9 * kept["v"] + g
        return w - rate * (g + 0.9 * kept["v"])
    return step


BETAS = (0.9, 0.99)
RULES: dict[str, tuple[Optimizer, Step]] = {}
for decay in (0.0, 0.05):
    RULES |= {
        f"lars-{decay}": (Lars(lr=1, trust=0.02, weight_decay=decay), lars(decay)),
        f"lars-everywhere-{decay}": (Lars(lr=1, trust=0.02, weight_decay=decay, decay="all", adapt="all"),
                                     lars(decay, everywhere=True)),
        f"lamb-{decay}": (Lamb(lr=1, betas=BETAS, weight_decay=decay), lamb(decay)),
        f"lamb-everywhere-{decay}": (Lamb(lr=1, betas=BETAS, weight_decay=decay, decay="all", adapt="all"),
                                     lamb(decay, everywhere=True)),
        f"adaptahead-{decay}": (AdaptAhead(lr=1, momentum=0.8, rho=0.95, eps=1e-4, weight_decay=decay),
                                adaptahead(decay)),
        f"lion-{decay}": (Lion(lr=1, weight_decay=decay), lion(decay)),
        f"adam-{decay}": (Adam(lr=1, betas=BETAS, weight_decay=decay), adam(decay)),
        f"rmsprop-{decay}": (RmsProp(lr=1, alpha=0.95, momentum=0.5, weight_decay=decay), rmsprop(decay)),
        f"nag-{decay}": (Sgd(lr=1, nesterov=True, weight_decay=decay), nag(decay)),
    }


@pytest.mark.parametrize("name", RULES)
def test_steps_are_the_formulas(name: str) -> None:
    optimizer, rule = RULES[name]
    expected = stepped(rule)
    if isinstance(optimizer, Lion):
        pytest.importorskip("pytorch_optimizer")
    found = run(optimizer)
    for tensor, values in expected.items():
        np.testing.assert_allclose(found[tensor], values, rtol=0, atol=1e-13)
        assert np.abs(values - start()[tensor]).max() > 1e-3


def test_decay_of_vectors_is_off_by_default_and_can_be_on() -> None:
    for kind in (Lars, Lamb):
        without, everywhere = run(kind(lr=1, weight_decay=0.0)), run(kind(lr=1, weight_decay=0.05))
        np.testing.assert_array_equal(without["bias"], everywhere["bias"])
        assert np.abs(without["weight"] - everywhere["weight"]).max() > 1e-6
        decayed = run(kind(lr=1, weight_decay=0.05, decay="all"))
        assert np.abs(without["bias"] - decayed["bias"]).max() > 1e-6


@pytest.mark.parametrize("kind", [Lars, Lamb])
def test_a_tensor_of_zeros_moves_and_stays_finite(kind: Any) -> None:
    zero = torch.nn.Parameter(torch.zeros(2, 2))
    still = torch.nn.Parameter(torch.ones(2, 2))
    made = kind(lr=0.1, weight_decay=0.0).build([("zero", zero), ("still", still)])
    zero.grad, still.grad = torch.ones(2, 2), torch.zeros(2, 2)
    made.step()
    assert float(zero.detach().abs().min()) > 1e-3
    assert torch.equal(still.detach(), torch.ones(2, 2))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", [Lars, Lamb])
def test_narrow_weights_are_stepped_in_float32(kind: Any, dtype: Any) -> None:
    """The norms of a large tensor of small numbers: a sum of squares in 16 bits would stop, or be 0."""
    weight = torch.nn.Parameter(torch.full((512, 512), 1e-3, dtype=dtype))
    made = kind(lr=100.0 if kind is Lars else 0.5, weight_decay=0.0).build([("weight", weight)])
    weight.grad = torch.full((512, 512), 1e-4, dtype=dtype)
    before = weight.detach().double()
    made.step()
    kept = [value.dtype for value in made.state[weight].values() if isinstance(value, torch.Tensor)]
    assert set(kept) == {torch.float32}
    share = float(((before - weight.detach().double()) / before).mean())
    # LARS: rate x trust; LAMB: rate x |w| / |u| x u, both as a share of the weights. 0.004: the rounding of bfloat16.
    assert share == pytest.approx(0.1 if kind is Lars else 0.5, abs=0.004)


@pytest.mark.parametrize("kind", [ScheduleFreeSgd, ScheduleFreeAdamW])
def test_schedule_free_evaluates_the_average_of_its_fast_weights(kind: Any) -> None:
    """Defazio et al. (2024), equations 8 to 10: y = (1 - b) z + b x, z steps at the gradient of y, x averages z."""
    pytest.importorskip("schedulefree")
    named = [(name, torch.nn.Parameter(torch.tensor(value))) for name, value in start().items()]
    made: Any = kind(lr=0.1).build(named)
    z, x = start(), start()
    square = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    for t in range(1, 6):
        for name, parameter in named:
            y = 0.1 * z[name] + 0.9 * x[name]
            np.testing.assert_allclose(parameter.detach().numpy(), y, atol=1e-13)
            g = gradient(name, y)
            parameter.grad = torch.tensor(g)
            if kind is ScheduleFreeAdamW:
                square[name] = 0.999 * square[name] + 0.001 * g**2
                g = g / (np.sqrt(square[name] / (1 - 0.999**t)) + 1e-8)
            z[name] = z[name] - 0.1 * g
            x[name] = x[name] + (z[name] - x[name]) / t
        made.step()
    made.eval()
    for name, parameter in named:
        np.testing.assert_allclose(parameter.detach().numpy(), x[name], atol=1e-12)
