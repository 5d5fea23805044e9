"""The choice, for every layer, between averaging its gradient and broadcasting its sufficient factors.

The gradient of an M x N fully connected layer is a sum over K rows of outer products. Each of P workers sends either
its part of an all-reduce of the M N numbers, or its K (M + N) numbers of factors to all others (Poseidon: Zhang et al.,
2015, arXiv:1512.06216; USENIX ATC 2017, arXiv:1706.03292). Bytes are of the busiest rank, sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from repro.seams.training import Comm

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
    """True: a fully connected layer whose weight belongs to it alone."""


@dataclass(frozen=True, slots=True)
class LayerCost:
    """One line of the cost table."""

    shape: Shape
    rows: int
    """K: rows of the factors of one worker in a step."""
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

    def __str__(self) -> str:
        way = "factors" if self.factors else "all-reduce"
        rule = "" if self.paper == self.factors else f", paper's rule: {'factors' if self.paper else 'all-reduce'}"
        return (f"{self.shape.name} {self.shape.outputs}x{self.shape.inputs} K={self.rows}: all-reduce "
                f"{self.reduce_bytes} B {self.reduce_seconds:.4f} s, factors {self.factor_bytes} B "
                f"{self.factor_seconds:.4f} s (modelled): {way}{rule}")


def crossover(outputs: int, inputs: int, world: int) -> float:
    """Return K*, the most rows for which the paper's rule chooses factors: 2 M N / (P (M + N))."""
    return 2 * outputs * inputs / (world * (outputs + inputs))


def layer_cost(
    shape: Shape, rows: int, world: int, comm: Comm, force: bool = False, itemsize: int = 4, factor_itemsize: int = 4
) -> LayerCost:
    """Return the costs of one layer and the choice by the bytes that `comm` really sends.

    Without a formula (the backend's own collectives) those of the ring are used.

    Args:
        force: send the factors of every fully connected layer.
        itemsize: bytes of a number of the gradient.
        factor_itemsize: bytes of a number of the factors.
    """
    def cost(operation: str, count: int, size: int, passes: int) -> tuple[int, float]:
        ring = passes * (world - 1) * count * size // world
        sent, rounds, path = comm.sent(operation, world, count, size) or (ring, passes * (world - 1), ring)
        return sent, ALPHA * rounds + BETA * path

    reduced, reduce_seconds = cost("all_reduce", shape.outputs * shape.inputs, itemsize, 2)
    gathered, factor_seconds = cost("all_gather", world * rows * (shape.outputs + shape.inputs),
                                         factor_itemsize, 1)
    paper = shape.linear and rows <= crossover(shape.outputs, shape.inputs, world)
    return LayerCost(shape, rows, reduced, gathered, reduce_seconds, factor_seconds, paper,
                     shape.linear and (force or gathered <= reduced))


def plan_layers(shapes: Sequence[Shape], rows: int, world: int, comm: Comm, force: bool = False) -> list[LayerCost]:
    """Return the cost table of a model whose layers all see `rows` rows."""
    return [layer_cost(shape, rows, world, comm, force) for shape in shapes]
