"""The choice, for every layer, between averaging its gradient and broadcasting its sufficient factors.

The gradient of an M x N fully connected layer is a sum over K rows of outer products. Each of P workers sends either
its part of an all-reduce of the M N numbers, or its K (M + N) numbers of factors to all others (Poseidon: Zhang et al.,
2015, arXiv:1512.06216; USENIX ATC 2017, arXiv:1706.03292). Bytes are of the busiest rank, sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from repro.engines.torch_engines import Ddp
from repro.record.result.parts import LayerCost
from repro.seams.plugin import Setting
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
    return LayerCost(
        **asdict(shape), reduce_bytes=reduced, factor_bytes=gathered, reduce_seconds=reduce_seconds,
        factor_seconds=factor_seconds, paper=paper, factors=shape.linear and (force or gathered <= reduced))


def plan_layers(shapes: Sequence[Shape], world: int, comm: Comm, force: bool = False) -> list[LayerCost]:
    """Return the cost table of a model."""
    return [layer_cost(shape, world, comm, force) for shape in shapes]


def in_words(table: Sequence[LayerCost]) -> str:
    """Return a cost table as one line; equal layers are counted."""
    counts = Counter(line.model_copy(update={"name": ""}) for line in table)
    return "; ".join(_line(line, count) for line, count in counts.items())


def _line(line: LayerCost, count: int) -> str:
    what = f"{count} x " * (count > 1) + f"{line.outputs} x {line.inputs}"
    reduced = f"{line.reduce_bytes / 1024:,.1f} KiB in {line.reduce_seconds * 1e3:.3g} ms by all-reduce"
    if not line.linear:
        return f"convolution {what}: {reduced}"
    factors = f"{line.factor_bytes / 1024:,.1f} KiB in {line.factor_seconds * 1e3:.3g} ms as factors"
    return f"{what}, K = {line.rows}: {reduced}, {factors}, sends {'factors' if line.factors else 'the gradient'}"


def unsupported(engine: Ddp, setting: Setting) -> str | None:
    """Return why an engine cannot send sufficient factors; None if it can."""
    if engine.send != "layerwise":
        return f"sufficient_factors leave layer by layer as they are ready; use send: layerwise, not {engine.send}"
    if setting.compression != "none":
        return "compression works on DDP's buckets, and sufficient_factors are in none; use one of the two"
    if setting.processes == 1:
        return "one process sends nothing, so sufficient_factors would have no effect"
    if engine.static_graph or engine.find_unused:
        return "sufficient_factors need every layer in every step; remove static_graph and find_unused"
    if setting.linear_layers is False:
        return ("sufficient_factors would have no effect: all layers of the model are convolutions; remove them, "
                "or use a model with fully connected layers")
    if setting.model.compile is not None:
        return "sufficient_factors are read by hooks of layers, which compiled code does not call; remove compile"
    if setting.model.activation_checkpointing:
        return "recomputation repeats calls that sufficient_factors count; remove activation_checkpointing"
    return None


def remark(engine: Ddp, layers: Sequence[LayerShape] | None, samples: int, processes: int, comm: Comm) -> str:
    """Return what a plan tells about an engine that sends sufficient factors (`Engine.remark`)."""
    if layers is None:
        return ("the workload does not state its layers, so the cost table of sufficient_factors is made at the "
                "start of each trial; it stands in the log, in the result and on the page")
    shapes = [Shape(str(number), layer.outputs, layer.inputs - layer.bias, not layer.kernel, samples * layer.positions)
              for number, layer in enumerate(layers)]
    table = plan_layers(shapes, processes, comm, engine.sufficient_factors == "all")
    return (f"gradients by layer (modelled, in float32), batch {samples} a process, {processes} processes: "
            f"{in_words(table)}")
