"""Sketches of tensors: linear, keyed by name and element, and those of parts sum to that of the whole."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from repro.callbacks import pieces
from repro.callbacks.sketch import CHUNK, Place, Sketcher, signs
from repro.program.gate.trace import Part, decoded, merged


def measured(place: Place, values: torch.Tensor) -> Part:
    return Part.model_validate(Sketcher().measure([(place, values)])[place.name])


def assert_whole(whole: torch.Tensor, parts: list[tuple[Place, torch.Tensor]]) -> None:
    name = parts[0][0].name
    right = merged([{name: measured(Place(name, whole.numel(), 0, whole.numel()), whole)}]).whole[name]
    found = merged([{name: measured(*part)} for part in parts]).whole[name]
    assert found.norm == pytest.approx(right.norm, rel=1e-5)
    assert np.abs(found.sketch - right.sketch).max() <= 1e-5 * max(right.norm, 1e-9)


@settings(max_examples=40, deadline=None)
@given(size=st.integers(1, 3 * CHUNK), cuts=st.lists(st.integers(0, 3 * CHUNK), max_size=4), seed=st.integers(0, 99))
def test_ranges_sum_to_the_whole_wherever_it_is_cut(size: int, cuts: list[int], seed: int) -> None:
    whole = torch.randn(size, generator=torch.Generator().manual_seed(seed))
    ends = sorted({0, size, *(cut for cut in cuts if cut < size)})
    assert_whole(whole, [(Place("a", size, low, high - low), whole[low:high])
                         for low, high in pairwise(ends)])


def test_columns_of_a_matrix_sum_to_the_whole() -> None:
    whole = torch.randn(30, 50)
    assert_whole(whole, [(Place("a", 1500, 0, 30 * width, ((0, 30, 30), (first, width, 50))),
                          whole[:, first:first + width]) for first, width in ((0, 13), (13, 37))])


def test_signs_depend_on_name_and_element_alone_and_never_change() -> None:
    assert torch.equal(signs("a", 70_000, 9), signs("a", 0, 80_000)[70_000:70_009])
    assert not torch.equal(signs("a", 0, 64), signs("b", 0, 64))
    assert signs("layer.weight", CHUNK - 4, 8).tolist() == [1, 1, -1, -1, 1, 1, 1, 1], "stored traces rely on them"


def test_a_sketch_estimates_the_distance_of_two_tensors() -> None:
    a, b = torch.randn(20_000), torch.randn(20_000)
    found = [decoded(measured(Place("a", 20_000, 0, 20_000), values).sketch) for values in (a, a + 0.01 * b)]
    assert np.linalg.norm(found[0] - found[1]) == pytest.approx(float((0.01 * b).norm()), rel=0.4)


def test_names_are_those_of_the_bare_model_and_tied_weights_count_once() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    net[1].weight = net[0].weight

    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

    wrapper = Wrapper(torch.compile(net, backend="eager"))  # type: ignore[arg-type]
    assert pieces.outermost(net) is wrapper
    assert [type(each).__name__ for each in pieces.chain(wrapper)] == ["Wrapper", "OptimizedModule", "Sequential"]
    assert [piece.place.name for piece in pieces.pieces_of(pieces.chain(wrapper)[-1])] == [
        "0.weight", "0.bias", "1.bias"]
