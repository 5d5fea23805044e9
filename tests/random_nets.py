"""Gradients of seeded random nets on real gloo ranks, averaged and by sufficient factors."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from repro.comm.algorithms.ring import Ring
from repro.core.random_streams import Streams
from repro.engines.precisions import Bf16Autocast, Fp32
from repro.engines.torch_engines import Ddp
from repro.optimizers.rules import Sgd
from repro.seams.training import Job, TrainingParts
from tests.engine_ranks import PRELOAD, free_port


def gradients(world: int, seeds: list[int], precision: str = "fp32") -> list[list[dict[str, Any]]]:
    """What every rank says of every seed."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOAD])
    ports, pipes, processes = [free_port() for _ in range(2 * len(seeds))], [], []
    for rank in range(world):
        mine, theirs = context.Pipe()
        order = (theirs, rank, world, ports, seeds, precision)
        processes.append(context.Process(target=_serve, args=order, daemon=True))
        processes[-1].start()
        theirs.close()
        pipes.append(mine)
    try:
        assert all(pipe.poll(90) for pipe in pipes), "a rank hangs"
        answers = [pipe.recv() for pipe in pipes]
        assert not (told := [answer for answer in answers if isinstance(answer, str)]), told[0]
        return answers
    finally:
        for process in processes:
            process.kill()
            process.join(10)


def _serve(pipe: Connection, rank: int, world: int, ports: list[int], seeds: list[int], precision: str) -> None:
    import torch

    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", LOCAL_RANK=str(rank))
    try:
        pipe.send([_both(rank, world, seed, precision, ports) for seed in seeds])
    except BaseException:
        pipe.send(traceback.format_exc())


def _both(rank: int, world: int, seed: int, precision: str, ports: list[int]) -> dict[str, Any]:
    draws = np.random.default_rng(seed)
    shape = {"samples": int(draws.integers(1, 6)), "positions": int(draws.integers(0, 5)),
             "accumulation": int(draws.integers(1, 3)), "bias": bool(draws.integers(2)),
             "widths": [int(width) for width in draws.integers(1, 40, 4)]}
    found = {"shape": shape}
    for name in ("none", "all"):
        os.environ["MASTER_PORT"] = str(ports.pop())  # of its own, as a store of the last session may still listen
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
