"""Tensor parallel layers on real processes: answers, memory and traffic of every scheme, layer and number of ranks."""

from __future__ import annotations

from typing import Any

import pytest

from repro.comm.algorithms.backend import Backend
from repro.comm.algorithms.ring import Ring
from repro.core.random_streams import Streams
from repro.papers.tensor3d.layout import Dimension, why_no_grid
from repro.papers.tensor3d.tensor_layer import TensorLayer
from repro.seams.measurement import Counted, Post
from repro.seams.training import Comm
from tests.flow.test_comm_group import together

pytest.importorskip("torch")

DIMENSIONS: tuple[Dimension, ...] = ("1d", "2d", "2.5d", "3d")
LAYERS = ("linear", "mlp", "attention")
SMALL = {"batch": 8, "sequence": 3, "hidden": 16, "heads": 8}
PATIENCE = 500.0
"""Seconds in which a loaded machine starts the ranks and ends the cases."""


def found(comm: Comm, rank: int, world: int, dimension: Dimension, layer: str) -> dict[str, Any]:
    """Run three operations of one case; return this rank's errors and figures."""
    options = TensorLayer.model_validate({"dimension": dimension, "layer": layer, **SMALL})
    running = options.start(Post(rank, world, "cpu", Streams(7, 0), comm, 60.0))
    comm.traffic()
    for _ in range(3):
        running.operate()
    lines = tuple(comm.traffic().get("lines", ()))
    result = running.finish(Counted(3, lines))
    errors = {check.name: (check.error, check.limit) for check in result.checks}
    return {"errors": errors, "figures": dict(result.figures)}


def every_case(comm: Comm, rank: int, world: int) -> dict[str, dict[str, Any]]:
    return {f"{dimension} {layer}": found(comm, rank, world, dimension, layer)
            for dimension in DIMENSIONS if not why_no_grid(dimension, world) for layer in LAYERS}


def check_ranks(ranks: list[Any], world: int) -> None:
    for cases in ranks:
        assert isinstance(cases, dict), cases
        for name, case in cases.items():
            wrong = {check: error for check, (error, limit) in case["errors"].items() if not error <= limit}
            assert not wrong, (name, wrong, case["figures"])
            assert world == 1 or "sent bytes against the formula" in case["errors"], name
            assert name.endswith("attention") or "peak bytes against the formula" in case["errors"], name
            answers = [limit for check, (_, limit) in case["errors"].items() if "dense" in check]
            assert len(answers) >= 3
            assert set(answers) == {1e-10}


def test_one_rank_is_the_dense_layer_in_every_scheme() -> None:
    cases = every_case(Ring(), 0, 1)
    assert len(cases) == 12
    check_ranks([cases], 1)


@pytest.mark.slow
@pytest.mark.parametrize(("world", "cases"), [(2, 3), (4, 9), (8, 9)])
def test_answers_memory_and_traffic_equal_the_dense_layer_and_the_formulas(world: int, cases: int) -> None:
    ranks = together(every_case, Ring(), world, PATIENCE, PATIENCE)
    check_ranks(ranks, world)
    assert [len(found) for found in ranks] == [cases] * world


def by_torch(comm: Comm, rank: int, world: int) -> float:
    """Return the largest difference of the 2-D product's gradients from those of torch's DTensor."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard

    options = TensorLayer.model_validate({"dimension": "2d", "layer": "linear", **SMALL})
    running: Any = options.start(Post(rank, world, "cpu", Streams(7, 0), comm, 60.0))
    running.operate()
    mesh = init_device_mesh("cpu", (2, 2))
    cut = [Shard(0), Shard(1)]
    x, a, dy = (DTensor.from_local(own.detach().clone(), mesh, cut)
                for own in (running.x, running.weights[0], running.dy))
    x.requires_grad_(), a.requires_grad_()
    y = x.redistribute(mesh, [Shard(0), Replicate()]) @ a.redistribute(mesh, [Replicate(), Shard(1)])
    torch.autograd.backward((y,), (dy,))
    pairs = ((running.y, y), (running.x.grad, x.grad), (running.weights[0].grad, a.grad))
    return max(float((own - theirs.to_local()).abs().max()) for own, theirs in pairs)


@pytest.mark.slow
def test_the_square_equals_the_distributed_tensor_of_torch() -> None:
    assert max(together(by_torch, Backend(), 4, PATIENCE, PATIENCE)) < 1e-12
