"""Gradients by sufficient factors and layer by layer, on real processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from repro.comm.algorithms.ring import Ring
from repro.engines.torch_engines import Ddp
from repro.papers.kfac.kfac import Kfac
from tests.engine_ranks import Case, check_warm_up, furthest, ranks, same_bytes
from tests.random_nets import gradients

pytest.importorskip("torch")

pytestmark = pytest.mark.slow
__all__ = ["ranks"]
Run = Callable[[Case], list[dict[str, Any]]]
PLAIN = Case(Ddp(), 4, 1, steps=10, comm=Ring(), overlap=None)
FACTORS = replace(PLAIN, engine=Ddp(send="layerwise", sufficient_factors="all"))


@pytest.mark.parametrize(("world", "accumulation", "clip"), [(2, 1, None), (4, 1, None), (2, 2, 0.5)])
def test_factors_give_the_gradients_of_an_all_reduce(
    ranks: Run, world: int, accumulation: int, clip: float | None
) -> None:
    change: dict[str, Any] = {"world": world, "accumulation": accumulation, "clip": clip}
    plain, found = ranks(replace(PLAIN, **change)), ranks(replace(FACTORS, **change))
    assert furthest(found[0]["weights"], plain[0]["weights"]) < 2e-6
    assert found[0]["norms"] == pytest.approx(plain[0]["norms"], rel=1e-5)
    assert all(same_bytes(rank["weights"], found[0]["weights"]) for rank in found)
    assert found[0]["effective"]["factor_layers"] == "2" and found[0]["effective"]["send"] == "layerwise"


@pytest.mark.parametrize("send", ["layerwise", "blocking"])
def test_every_gradient_leaves_alone(ranks: Run, send: str) -> None:
    plain, found = ranks(PLAIN), ranks(replace(PLAIN, engine=Ddp(send=send)))  # type: ignore[arg-type]
    assert furthest(found[0]["weights"], plain[0]["weights"]) < 2e-6
    assert found[0]["effective"]["buckets"] == "8" and found[0]["effective"]["send"] == send
    assert found[0]["effective"]["overlap"] == ("off" if send == "blocking" else "on")


def test_factors_send_the_bytes_of_the_formula(ranks: Run) -> None:
    found = ranks(replace(FACTORS, body="messages", steps=3))[0]["messages"][-1]
    gathered, rows = found["all_gather", "float32"], 16 // 4
    numbers = rows * (216 + 13) + rows * (13 + 10)
    assert gathered["collectives"] == 2 and gathered["payload_bytes"] == 4 * numbers
    assert gathered["sent_bytes"] == 3 * 4 * numbers
    assert found["all_reduce", "float32"]["collectives"] == 6
    assert found["all_reduce", "float32"]["payload_bytes"] == 4 * (6 * 9 + 6 + 6 + 6 + 13 + 10)


def test_a_warm_up_leaves_no_trace_with_factors(ranks: Run) -> None:
    check_warm_up(ranks, replace(FACTORS, world=2))


def test_on_four_ranks_a_first_step_without_warm_up_differs_by_rounding_at_most(ranks: Run) -> None:
    # In its first step DDP has one bucket of all tensors, and each alone only from the second step on. A ring of more
    # than two ranks may then add an element in another order, in plain DDP too. Whether bits differ depends on the
    # processor.
    for case in (replace(PLAIN, engine=Ddp(send="layerwise")), FACTORS):
        cold, warm = (ranks(replace(case, warm_up=warm))[0]["weights"] for warm in (False, True))
        assert furthest(cold, warm) < 2e-6


SEEDS = {2: range(6), 4: range(6, 9)}


@pytest.mark.parametrize("world", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_random_shapes_give_the_gradients_of_an_all_reduce(ranks: Run, world: int) -> None:
    answers = gradients(ranks, world, [*SEEDS[world]])
    for seed, ranks_found in zip(SEEDS[world], zip(*answers, strict=True), strict=True):
        for found in ranks_found:
            plain, factors = found["none"]["gradients"], found["all"]["gradients"]
            size = max(float(np.abs(values).max()) for values in plain.values())
            assert furthest(plain, factors) < 2e-6 * max(1.0, size), (seed, found["shape"])
            assert same_bytes(factors, ranks_found[0]["all"]["gradients"])
            shape = found["shape"]
            rows = shape["samples"] * max(1, shape["positions"]) * shape["accumulation"]
            assert [line["rows"] for line in found["all"]["plan"]] == [rows] * 3, "samples times positions"
            assert all(line["factors"] and line["factor_itemsize"] == 4 for line in found["all"]["plan"])
    assert any(found["shape"]["positions"] > 1 for found in answers[0]), "inputs as in a transformer"


def test_factors_of_bf16_autocast_are_counted_in_their_type(ranks: Run) -> None:
    found = gradients(ranks, 2, [1], "bf16-autocast")[0][0]
    plain, factors = found["none"]["gradients"], found["all"]["gradients"]
    for name, values in plain.items():
        np.testing.assert_allclose(factors[name], values, rtol=0.02, atol=0.004 * float(np.abs(values).max() + 1e-6))
    lines = found["all"]["plan"]
    assert {(line["itemsize"], line["factor_itemsize"]) for line in lines} == {(4, 2)}


@pytest.mark.parametrize("kfac", [
    Kfac(eigen_every=4, factor_every=2),
    pytest.param(Kfac(placement="lw", eigen_every=4), marks=pytest.mark.slow)], ids=["opt", "lw"])
def test_a_preconditioner_sees_the_layers_that_send_factors(ranks: Run, kfac: Kfac) -> None:
    change: dict[str, Any] = {"world": 2, "accumulation": 2, "preconditioner": kfac}
    plain, found = ranks(replace(PLAIN, **change)), ranks(replace(FACTORS, **change))
    assert furthest(found[0]["weights"], plain[0]["weights"]) < 1e-4
    assert furthest(found[0]["weights"], ranks(replace(PLAIN, world=2, accumulation=2))[0]["weights"]) > 0.01
