"""Step time of a perceptron of 10M parameters that `repro gate` traces, and that calls `watch.trace` without a gate,
over that of the plain loop: one process, one thread, single steps in turn."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from statistics import median

from repro import watch
from repro.core.frozen import Frozen

WIDTH, DEPTH = 2236, 2
"""Layers of 2236 x 2236: 10.0M parameters."""
WARM_UP = 3
"""Steps of each before the first counted one, in which signs are drawn."""


class TraceCost(Frozen):
    """Median step times, ms."""

    batch: int
    steps: int
    plain: float
    untraced: float
    traced: float

    @property
    def holds(self) -> bool:
        return self.traced <= 6 * self.plain

    def text(self) -> str:
        return (f"perceptron of 10M parameters, batch {self.batch}, median of {self.steps} steps in turn: plain "
                f"{self.plain:.1f} ms, with watch.trace outside a gate {self.untraced / self.plain:.3f} x, traced "
                f"{self.traced / self.plain:.2f} x")


def measure(batch: int = 128, steps: int = 21, optimizer: str = "AdamW") -> TraceCost:
    """Time the steps.

    Args:
        optimizer: class of torch.optim.
    """
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        wanted = json.dumps({"folder": folder, "steps": [*range(1, steps + WARM_UP + 2)], "ulp": 0})
        loops = {name: _loop(batch, optimizer, environment) for name, environment in (
            ("plain", None), ("untraced", {}), ("traced", {watch.TRACE: wanted}))}
        seconds: dict[str, list[float]] = {name: [] for name in loops}
        for _ in range(steps + WARM_UP):
            for name, step in loops.items():
                begin = time.perf_counter()
                step()
                seconds[name].append(time.perf_counter() - begin)
    return TraceCost(batch=batch, steps=steps,
                     **{name: 1e3 * median(found[WARM_UP:]) for name, found in seconds.items()})


def _loop(batch: int, optimizer: str, environment: Mapping[str, str] | None) -> Callable[[], None]:
    """Return a function that takes one step of a loop.

    Args:
        environment: with which it calls `watch.trace`; None: it does not.
    """
    import torch
    from torch import nn

    net = nn.Sequential(*(layer for _ in range(DEPTH) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())))
    updates = getattr(torch.optim, optimizer)(net.parameters(), lr=1e-6)
    inputs = torch.randn(batch, WIDTH)
    if environment is not None:
        os.environ.update(environment)
        watch.trace(net, updates)
        for name in environment:
            del os.environ[name]

    backward = torch.autograd.backward  # a trace replaces it for all

    def step() -> None:
        torch.autograd.backward = backward
        torch.mean(net(inputs) ** 2).backward()  # type: ignore[no-untyped-call]
        updates.step()
        updates.zero_grad()

    return step
