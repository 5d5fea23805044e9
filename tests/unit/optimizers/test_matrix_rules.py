"""Muon, SOAP and Shampoo against references by singular values and eigenvectors, and the groups of Muon."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from repro.core.errors import UsageError  # noqa: E402
from repro.engines.plain.state import class_of, options_of  # noqa: E402
from repro.optimizers.muon import Muon, hidden_names  # noqa: E402
from repro.optimizers.rules import Shampoo, Soap  # noqa: E402


def network() -> Any:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.Linear(16, 12), torch.nn.Linear(12, 8),
                               torch.nn.Linear(8, 10))


def matrices(steps: int) -> list[Any]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(12, 16, generator=generator, dtype=torch.float64) for _ in range(steps)]


def polynomial(matrix: Any) -> Any:
    """Five Newton-Schulz steps in float64, by the singular values: 3.4445 s - 4.7750 s^3 + 2.0315 s^5."""
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    values = values / values.square().sum().sqrt()
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return left * values @ right


@pytest.mark.parametrize("nesterov", [True, False])
def test_muon_is_the_polynomial_of_its_momentum_to_bfloat16(nesterov: bool) -> None:
    parameter = torch.nn.Parameter(torch.ones(12, 16, dtype=torch.float64))
    made = Muon(lr=0.1, hidden=("w",), nesterov=nesterov, weight_decay=0.2).build([("w", parameter)])
    expected, momentum = torch.ones(12, 16, dtype=torch.float64), torch.zeros(12, 16, dtype=torch.float64)
    for gradient in matrices(4):
        parameter.grad = gradient.clone()
        made.step()
        momentum = 0.95 * momentum + 0.05 * gradient
        update = 0.05 * gradient + 0.95 * momentum if nesterov else momentum
        expected = expected * (1 - 0.1 * 0.2) - 0.1 * polynomial(update)
    # A product in bfloat16 is right to 2^-8; the polynomial multiplies errors by up to 3.4 in each of five steps.
    assert float((parameter.detach() - expected).norm() / (expected - 0.98**4).norm()) < 0.02


def test_muon_has_hidden_matrices_and_adamw_the_rest_as_the_record_shows() -> None:
    net = network()
    made = Muon(lr=0.02, adamw_lr=0.001, weight_decay=0.1, decay="weights").build(net.named_parameters())
    shown = json.loads(options_of(made))
    assert class_of(made) == "repro.optimizers.updates.Joined"
    assert sorted((group["rule"], group["weight_decay"], group["tensors"]) for group in shown) == [
        ("adamw", 0.0, {"*.bias": 4}), ("adamw", 0.1, {"*.weight": 2}), ("muon", 0.1, {"*.weight": 2})]
    held = {group["rule"]: len(group["params"]) for group in made.param_groups if group["weight_decay"]}
    assert held == {"muon": 2, "adamw": 2}
    assert {id(item) for item in made.param_groups[0]["params"]} == {id(net[1].weight), id(net[2].weight)}


def test_the_rest_is_stepped_by_adamw_with_its_own_rate() -> None:
    one, other = network(), network()
    made = Muon(lr=0.02, adamw_lr=0.001, weight_decay=0.1).build(one.named_parameters())
    theirs = torch.optim.AdamW(other.parameters(), lr=0.0005, weight_decay=0.1, foreach=False)
    for _ in range(3):
        for mine, its in zip(one.parameters(), other.parameters(), strict=True):
            its.grad = torch.ones_like(its)
            mine.grad = torch.ones_like(mine)
        for group in made.param_groups:
            group["lr"] = 0.01  # half of the rate, as a schedule sets it: AdamW's is halved, too
        made.step()
        theirs.step()
    for index in (0, 3):
        torch.testing.assert_close(one[index].weight, other[index].weight, rtol=0, atol=0)
    assert float((one[1].weight - other[1].weight).detach().abs().max()) > 1e-4
    assert [group["lr"] for group in made.param_groups] == [0.01, 0.01]


def test_loaded_state_is_that_of_the_next_step() -> None:
    """By torch's own `load_state_dict`, as DeepSpeed does it: it replaces the objects of groups and state."""
    one, other = network(), network()
    made, resumed = (Muon(lr=0.02).build(net.named_parameters()) for net in (one, other))

    def step(net: Any, optimizer: Any, value: float) -> None:
        for parameter in net.parameters():
            parameter.grad = torch.full_like(parameter, value) + parameter.detach()
        optimizer.step()

    step(one, made, 1.0)
    step(other, resumed, 0.3)
    other.load_state_dict(one.state_dict())
    resumed.load_state_dict(copy.deepcopy(made.state_dict()))
    for net, optimizer in ((one, made), (other, resumed)):
        step(net, optimizer, -0.5)
    for mine, its in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine.detach(), its.detach())


@pytest.mark.parametrize(("named", "patterns", "expected"), [
    ([("0.weight", 2), ("0.bias", 1), ("2.weight", 2), ("4.weight", 2)], None, {"2.weight"}),
    ([("0.weight", 4), ("3.weight", 2), ("5.weight", 2)], None, {"3.weight"}),  # the first layer is a convolution
    ([("net.0.weight", 2), ("net.2.weight", 2), ("net.4.weight", 2)], None, {"net.2.weight"}),
    ([("tokens", 2), ("positions", 2), ("blocks.0.widen.weight", 2), ("blocks.1.narrow.weight", 2),
      ("blocks.1.norm.weight", 1)], None, {"blocks.0.widen.weight", "blocks.1.narrow.weight"}),
    ([("a", 2), ("b", 2), ("c", 4)], ("a", "c"), {"a"}),
    ([("0.weight", 4), ("3.weight", 4), ("5.weight", 2)], None, set()),
])
def test_hidden_matrices_are_told_by_name_and_place(
    named: list[tuple[str, int]], patterns: tuple[str, ...] | None, expected: set[str]
) -> None:
    assert hidden_names(named, patterns) == expected


def test_a_model_without_hidden_matrices_is_refused_in_a_line() -> None:
    net = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.Linear(4, 10))
    with pytest.raises(UsageError, match=r"^optimizer muon: the model has no hidden matrix .* in `hidden`"):
        Muon(lr=0.1).build(net.named_parameters())


def test_shampoo_is_the_fourth_roots_of_the_sums() -> None:
    pytest.importorskip("pytorch_optimizer")
    parameter = torch.nn.Parameter(torch.ones(12, 16, dtype=torch.float64))
    made = Shampoo(lr=0.1, matrix_eps=1e-3).build([("w", parameter)])
    expected = torch.ones(12, 16, dtype=torch.float64)
    left, right = (1e-3 * torch.eye(size, dtype=torch.float64) for size in (12, 16))
    for gradient in matrices(4):
        parameter.grad = gradient.clone()
        made.step()
        left, right = left + gradient @ gradient.T, right + gradient.T @ gradient
        roots = []
        for matrix in (left, right):
            values, vectors = torch.linalg.eigh(matrix)
            roots.append(vectors * values**-0.25 @ vectors.T)
        expected = expected - 0.1 * roots[0] @ gradient @ roots[1]
    torch.testing.assert_close(parameter.detach(), expected, rtol=0, atol=1e-4)  # the library starts from float32


@pytest.mark.parametrize("steps", [1, 7])
def test_the_period_of_shampoos_roots_is_read_back_from_the_object(steps: int) -> None:
    pytest.importorskip("pytorch_optimizer")
    made = Shampoo(lr=0.1, roots_every=3).build([("w", torch.nn.Parameter(torch.ones(4, 4)))])
    made.preconditioning_compute_steps = steps  # what runs, not what was asked for
    assert [group["preconditioning_compute_steps"] for group in json.loads(options_of(made))] == [steps]


def test_soap_is_adam_in_the_eigenbasis_of_the_first_gradient() -> None:
    """Vyas et al. (2024), algorithm 3: the first step only measures; until `basis_every` the basis stays."""
    pytest.importorskip("pytorch_optimizer")
    parameter = torch.nn.Parameter(torch.ones(12, 16, dtype=torch.float64))
    made = Soap(lr=0.1, betas=(0.9, 0.95), weight_decay=0.0, basis_every=10).build([("w", parameter)])
    first, *rest = matrices(4)
    parameter.grad = first.clone()
    made.step()
    assert torch.equal(parameter.detach(), torch.ones(12, 16, dtype=torch.float64))
    left = torch.linalg.eigh(first @ first.T)[1].flip(1)
    expected, mean, square = (torch.full((12, 16), value, dtype=torch.float64) for value in (1.0, 0.0, 0.0))
    right = made.state[parameter]["Q"][1]  # its null space has no unique basis: the library's own
    values = torch.linalg.eigvalsh(first.T @ first).flip(0)
    torch.testing.assert_close(right.T @ (first.T @ first) @ right, torch.diag(values), rtol=0, atol=1e-10)
    for step, gradient in enumerate(rest, 1):
        parameter.grad = gradient.clone()
        made.step()
        mean, square = 0.9 * mean + 0.1 * gradient, 0.95 * square + 0.05 * (left.T @ gradient @ right)**2
        scaled = (left.T @ mean @ right) / (square.sqrt() + 1e-8) * (1 - 0.95**step)**0.5 / (1 - 0.9**step)
        expected = expected - 0.1 * left @ scaled @ right.T
    torch.testing.assert_close(parameter.detach(), expected, rtol=0, atol=1e-9)
