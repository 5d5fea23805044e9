"""Gradients of seeded random nets on real gloo ranks, averaged and by sufficient factors."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from repro.comm.algorithms.ring import Ring
from repro.core.random_streams import Streams
from repro.engines.precisions import Bf16Autocast, Fp32
from repro.engines.torch_engines import Ddp
from repro.optimizers.rules import Sgd
from repro.seams.training import Job, TrainingParts
from tests.commands import free_port


@dataclass(frozen=True)
class Nets:
    """Nets of several seeds, for every rank."""

    world: int
    seeds: tuple[int, ...]
    precision: str = "fp32"
    ports: tuple[int, ...] = field(default=(), repr=False)
    """Two of its own a seed, as a store of the last session may still listen."""

    def train(self, rank: int) -> dict[str, Any]:
        ports = list(self.ports)
        return {"nets": [_both(rank, self.world, seed, self.precision, ports) for seed in self.seeds]}


def gradients(ranks: Any, world: int, seeds: list[int], precision: str = "fp32") -> list[list[dict[str, Any]]]:
    """What every rank says of every seed."""
    ports = tuple(free_port() for _ in range(2 * len(seeds)))
    return [answer["nets"] for answer in ranks(Nets(world, tuple(seeds), precision, ports))]


def _both(rank: int, world: int, seed: int, precision: str, ports: list[int]) -> dict[str, Any]:
    draws = np.random.default_rng(seed)
    shape = {"samples": int(draws.integers(1, 6)), "positions": int(draws.integers(0, 5)),
             "accumulation": int(draws.integers(1, 3)), "bias": bool(draws.integers(2)),
             "widths": [int(width) for width in draws.integers(1, 40, 4)]}
    found = {"shape": shape}
    for name in ("none", "all"):
        os.environ["MASTER_PORT"] = str(ports.pop())
        found[name] = _gradients(rank, world, seed, shape, name, precision)
    return found


def _gradients(rank: int, world: int, seed: int, shape: dict[str, Any], factors: Any, precision: str) -> dict[str, Any]:
    import torch
    from torch import nn

    torch.manual_seed(seed)
    widths, layers = shape["widths"], []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs, bias=shape["bias"]), nn.Tanh()]
    model = nn.Sequential(*layers, nn.LayerNorm(widths[-1]))
    generator = torch.Generator().manual_seed(1000 * seed + rank)

    def batch(count: int) -> Any:
        positions = [shape["positions"]] * (shape["positions"] > 0)  # without: a matrix of samples
        return (torch.randn(count, *positions, widths[0], generator=generator),
                torch.randn(count, *positions, widths[-1], generator=generator))

    def unused(*_: Any) -> Any:
        raise AssertionError

    parts = TrainingParts(model, nn.functional.mse_loss, {}, unused, unused,
                          lambda count: (torch.zeros(count, *batch(1)[0].shape[1:]), None), unused)
    kinds = {"fp32": Fp32, "bf16-autocast": Bf16Autocast}
    job = Job(rank, world, "cpu", shape["samples"], shape["accumulation"], None, kinds[precision](), Sgd(lr=0.1),
              Ring(), timeout_seconds=60)
    session = Ddp(send="layerwise", sufficient_factors=factors).start(parts, job, Streams(1, 0))
    try:
        generator.manual_seed(1000 * seed + rank)
        session.backward([batch(shape["samples"]) for _ in range(shape["accumulation"])])
        return {"gradients": session.gradients(), "plan": session.gradient_plan()}
    finally:
        session.close()
