"""The choice, for every layer, between averaging its gradient and broadcasting its sufficient factors.

The gradient of an M x N fully connected layer is a sum over K rows of outer products. Each of P workers sends either
its part of an all-reduce of the M N numbers, or its K (M + N) numbers of factors to all others (Poseidon: Zhang et al.,
2015, arXiv:1512.06216; USENIX ATC 2017, arXiv:1706.03292). Bytes are of the busiest rank, sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from repro.seams.training import Comm
from repro.seams.workload import LayerShape

ALPHA, BETA = 2.0e-4, 1.6e-8
"""Stated, not measured: 500 Mbit/s and 0.2 ms a round. Predicted seconds are shown; the choice is by bytes."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A layer as the planner sees it."""

    name: str
    """Name of the weight."""
    outputs: int
    """M."""
    inputs: int
    """N; of a convolution all weights of one output."""
    linear: bool
    """True: a fully connected layer whose weight belongs to it alone, and which the model calls."""
    rows: int = 0
    """K: rows that the layer sees in a step on one worker, samples times positions."""
    itemsize: int = 4
    """Bytes of a number of the gradient."""
    factor_itemsize: int = 4
    """Bytes of a number of the factors: the type in which the layer computes."""


@dataclass(frozen=True, slots=True)
class LayerCost:
    """One line of the cost table."""

    shape: Shape
    reduce_bytes: int
    factor_bytes: int
    reduce_seconds: float
    """Modelled."""
    factor_seconds: float
    """Modelled."""
    paper: bool
    """The paper's rule for workers that are also servers: K <= 2 M N / (P (M + N))."""
    factors: bool
    """The choice: the layer sends its factors."""

    def row(self) -> dict[str, Any]:
        """Return the line as `repro.record.result.parts.LayerCost` has it (JSON-like)."""
        found = asdict(self)
        return {**found.pop("shape"), **found}


def crossover(outputs: int, inputs: int, world: int) -> float:
    """Return K*, the most rows for which the paper's rule chooses factors: 2 M N / (P (M + N))."""
    return 2 * outputs * inputs / (world * (outputs + inputs))


def layer_cost(shape: Shape, world: int, comm: Comm, force: bool = False) -> LayerCost:
    """Return the costs of one layer and the choice by the bytes that `comm` really sends.

    Without a formula (the backend's own collectives) those of the ring are used.

    Args:
        force: send the factors of every fully connected layer.
    """
    def cost(operation: str, count: int, size: int, passes: int) -> tuple[int, float]:
        ring = passes * (world - 1) * count * size // world
        sent, rounds, path = comm.sent(operation, world, count, size) or (ring, passes * (world - 1), ring)
        return sent, ALPHA * rounds + BETA * path

    reduced, reduce_seconds = cost("all_reduce", shape.outputs * shape.inputs, shape.itemsize, 2)
    numbers = shape.rows * (shape.outputs + shape.inputs)
    gathered, factor_seconds = cost("all_gather", world * numbers, shape.factor_itemsize, 1)
    paper = shape.linear and shape.rows <= crossover(shape.outputs, shape.inputs, world)
    return LayerCost(shape, reduced, gathered, reduce_seconds, factor_seconds, paper,
                     shape.linear and (force or gathered <= reduced))


def plan_layers(shapes: Sequence[Shape], world: int, comm: Comm, force: bool = False) -> list[LayerCost]:
    """Return the cost table of a model."""
    return [layer_cost(shape, world, comm, force) for shape in shapes]


def shapes_of(layers: Sequence[LayerShape], samples: int) -> list[Shape]:
    """Return the layers that a workload states as the planner sees them, float32.

    Args:
        samples: of one worker in one step.
    """
    return [Shape(str(number), layer.outputs, layer.inputs - layer.bias, not layer.kernel, samples * layer.positions)
            for number, layer in enumerate(layers)]


def in_words(table: Sequence[LayerCost]) -> str:
    """Return a cost table as one line; equal layers are counted."""
    counts = Counter(replace(line, shape=replace(line.shape, name="")) for line in table)
    return "; ".join(_line(line, count) for line, count in counts.items())


def _line(line: LayerCost, count: int) -> str:
    shape = line.shape
    what = f"{count} x " * (count > 1) + f"{shape.outputs} x {shape.inputs}"
    reduced = f"{line.reduce_bytes / 1024:,.1f} KiB in {line.reduce_seconds * 1e3:.3g} ms by all-reduce"
    if not shape.linear:
        return f"convolution {what}: {reduced}"
    factors = f"{line.factor_bytes / 1024:,.1f} KiB in {line.factor_seconds * 1e3:.3g} ms as factors"
    return f"{what}, K = {shape.rows}: {reduced}, {factors}, sends {'factors' if line.factors else 'the gradient'}"
