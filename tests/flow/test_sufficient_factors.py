"""Gradients by sufficient factors and layer by layer, on real processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from repro.comm.algorithms.ring import Ring
from repro.engines.ddp import Ddp
from tests.engine_ranks import Case, check_warm_up, furthest, ranks, same_bytes

pytest.importorskip("torch")
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
    # Two ranks: DDP's first step has one bucket, in which a ring of more ranks adds in another order.
    check_warm_up(ranks, replace(FACTORS, world=2))
