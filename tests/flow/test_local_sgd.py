"""Local SGD and DiLoCo on real gloo ranks: against DDP, against a rule written by hand, to the byte."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from repro.comm.algorithms.ring import Ring
from repro.engines.precisions import Bf16Master
from repro.engines.torch_engines import Ddp
from repro.papers.local_sgd.local_session import OuterStep
from repro.papers.local_sgd.local_sgd import LocalSgd, Outer
from tests.engine_ranks import ADAMW, Case, Run, check_warm_up, furthest, ranks, same_bytes

__all__ = ["ranks"]

EVERY_STEP = LocalSgd(every=1)
DILOCO = LocalSgd(every=4, outer=Outer(lr=0.7, momentum=0.9, nesterov=True))


@pytest.mark.parametrize("world", [2, 4])
def test_averaging_after_every_step_is_ddp(ranks: Run, world: int) -> None:
    ours, theirs = ranks(Case(EVERY_STEP, world, overlap=None)), ranks(Case(Ddp(), world))
    for mine, other in zip(ours, theirs, strict=True):
        assert np.allclose(mine["losses"], other["losses"], rtol=1e-5)
        assert np.allclose(mine["norms"], other["norms"], rtol=1e-4)
        assert furthest(mine["weights"], other["weights"]) < 1e-5
    assert all(same_bytes(ours[0]["weights"], one["weights"]) for one in ours)


def test_rare_averaging_is_not_ddp(ranks: Run) -> None:
    rare = ranks(Case(LocalSgd(every=4), 2, overlap=None))[0]
    assert furthest(rare["weights"], ranks(Case(Ddp(), 2))[0]["weights"]) > 1e-4


def test_ranks_differ_between_synchronisations_and_evaluate_one_average(ranks: Run) -> None:
    one, other = ranks(Case(DILOCO, 2, overlap=None, steps=6, body="averages"))
    assert not same_bytes(one["before"], other["before"])
    assert same_bytes(one["averaged"], other["averaged"])
    for name, averaged in one["averaged"].items():
        mean = (one["before"][name].astype(np.float64) + other["before"][name]) / 2
        assert np.allclose(averaged, mean, rtol=1e-6, atol=1e-7)
    for found in (one, other):
        assert same_bytes(found["after"], found["before"]), "an evaluation changed the training"
        assert all(np.array_equal(item.values, found["averaged"][item.name].ravel()) for item in found["held"])


@pytest.mark.parametrize("case", [Case(DILOCO, 2, overlap=None), Case(DILOCO, 2, 2, ADAMW, overlap=None),
                                  Case(DILOCO, 2, overlap=None, precision=Bf16Master())], ids=str)
def test_warm_up_leaves_no_trace(ranks: Run, case: Case) -> None:
    check_warm_up(ranks, case)
    warm = ranks(replace(case, warm_up=True))[0]["effective"]
    assert warm["comm_dtype"] == "float32"
    assert (warm["synchronised_every"], warm["outer_rate"], warm["outer_momentum"]) == ("4", "0.7", "0.9")


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
def test_the_outer_step_is_the_rule_written_by_hand(momentum: float, nesterov: bool) -> None:
    import torch

    rng = np.random.default_rng(3)
    theta, b, rate = rng.standard_normal(11), np.zeros(11), 0.7
    local = torch.from_numpy(theta.astype(np.float32)).reshape(11, 1)
    theta = local.numpy().ravel().astype(np.float64)
    step = OuterStep([local], 1, rate, momentum, nesterov)
    for _ in range(5):
        drift = rng.standard_normal(11).astype(np.float32)
        local += torch.from_numpy(drift).reshape(11, 1)
        step.synchronise()
        d = -drift.astype(np.float64)
        b = momentum * b + d
        theta = theta - rate * (d + momentum * b if nesterov else b)
        assert np.allclose(local.numpy().ravel(), theta, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("every", [1, 4, 16])
def test_one_all_reduce_of_all_weights_every_so_many_steps(ranks: Run, every: int) -> None:
    world, steps = 4, 18
    found = ranks(Case(LocalSgd(every=every), world, overlap=None, steps=steps, comm=Ring(), body="messages"))
    size = 4 * sum(math.prod(shape) for shape in found[0]["shapes"].values())
    sent = [sum(line["sent_bytes"] for step in rank["messages"] for line in step.values()) for rank in found]
    collectives = [_count(step) for step in found[0]["messages"]]
    assert collectives == [int((step + 1) % every == 0) for step in range(steps)]
    assert all(line["payload_bytes"] == size for step in found[0]["messages"] for line in step.values())
    assert sum(sent) == steps // every * 2 * (world - 1) * size


def test_an_evaluation_inside_a_round_is_one_more_all_reduce(ranks: Run) -> None:
    """`follow` sends the losses' sums and the gradients too; the weights' messages are the rest."""
    case = Case(LocalSgd(every=16), 2, overlap=None, steps=18, comm=Ring())
    inside, at_its_end = (_weights_sent(ranks(replace(case, steps=steps))[0]) for steps in (18, 16))
    assert (inside, at_its_end) == (math.ceil(18 / 16), math.ceil(16 / 16))


def _weights_sent(found: dict[str, Any]) -> int:
    size = 4 * sum(array.size for array in found["weights"].values())
    line = next(line for line in found["traffic"]["lines"] if line["dtype"] == "float32")
    whole, rest = divmod(line["payload_bytes"], size)
    assert not rest and whole == line["collectives"]
    return int(whole) - len(found["norms"])


def _count(lines: dict[Any, Any]) -> int:
    return sum(line["collectives"] for line in lines.values())
