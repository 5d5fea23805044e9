"""The planner of sufficient factors: bytes, the crossover, and never a convolution."""

from __future__ import annotations

import math

import pytest

from repro.comm.algorithms.ring import Ring
from repro.engines.torch_engines import Ddp
from repro.papers.wait_free.gradient_plan import Shape, crossover, layer_cost, plan_layers
from repro.seams.workload import LayerShape

TABLE = [(4096, 4096, 4, 1024), (4096, 4096, 8, 512), (25088, 4096, 4, 1760), (25088, 4096, 8, 880),
         (256, 128, 4, 42), (256, 128, 8, 21)]


@pytest.mark.parametrize(("outputs", "inputs", "world", "most"), TABLE)
def test_the_choice_flips_at_the_crossover(outputs: int, inputs: int, world: int, most: int) -> None:
    assert math.floor(crossover(outputs, inputs, world)) == most
    below, above = (layer_cost(Shape("fc.weight", outputs, inputs, linear=True, rows=rows), world, Ring())
                    for rows in (most, most + 1))
    assert below.factors and below.paper
    assert not above.factors and not above.paper


def test_bytes_are_those_of_the_formulas() -> None:
    line = layer_cost(Shape("fc.weight", 256, 128, linear=True, rows=16), 4, Ring())
    assert line.reduce_bytes == 2 * 3 * 256 * 128 * 4 // 4
    assert line.factor_bytes == 3 * 16 * (256 + 128) * 4
    half = layer_cost(Shape("fc.weight", 256, 128, linear=True, rows=16, factor_itemsize=2), 4, Ring())
    assert (half.reduce_bytes, half.factor_bytes) == (line.reduce_bytes, line.factor_bytes // 2)


def test_a_convolution_never_sends_factors() -> None:
    shape = Shape("conv.weight", 4096, 4096, linear=False, rows=1)
    assert not any(line.factors or line.paper for force in (False, True)
                   for line in plan_layers([shape], 8, Ring(), force))


def test_a_plan_shows_the_table_of_a_workload_that_states_its_layers() -> None:
    wide = LayerShape(513, 512, bias=True)
    layers = [LayerShape(65, 512, bias=True), wide, wide, LayerShape(9, 16, 64, kernel=True)]
    text = Ddp(sufficient_factors="planned").remark(layers, 16, 4, Ring())
    assert "2 x 512 x 512, K = 16: 1,536.0 KiB in 27.6 ms by all-reduce, 192.0 KiB in 3.75 ms as factors, sends " \
        "factors; convolution 16 x 9: " in text
    assert "made at the start of each trial" in Ddp(sufficient_factors="planned").remark(None, 16, 4, Ring())
    assert Ddp().remark(layers, 16, 4, Ring()) == ""
