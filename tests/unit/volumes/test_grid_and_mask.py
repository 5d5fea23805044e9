"""Grids of overlapping chunks and their weights: every voxel is covered, weights sum to one, the identity is exact."""

from __future__ import annotations

from itertools import product
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from repro.core.errors import UsageError
from repro.papers.chunkflow import operators
from repro.papers.chunkflow.grid import Grid, Triple
from repro.papers.chunkflow.operators import weights

SETTINGS = 200


def random_grid(rng: np.random.Generator, largest: int = 24, most: int = 300) -> Grid:
    """Return a random grid of at most `most` chunks."""
    while True:
        shape = triple(int(rng.integers(1, largest + 1)) for _ in range(3))
        chunk = triple(int(rng.integers(1, size + 1)) for size in shape)
        overlap = triple(int(rng.integers(0, size // 2 + 1)) for size in chunk)
        grid = Grid(shape, chunk, overlap)
        if grid.chunks <= most:
            return grid


def test_convolutions_on_a_gpu_do_not_round_to_tensorfloat() -> None:
    torch = pytest.importorskip("torch")
    seen = []

    def model(data: Any) -> Any:
        seen.append(torch.backends.cudnn.allow_tf32)
        return data

    before = torch.backends.cudnn.allow_tf32
    with patch.object(operators, "conv_net", lambda device: model):
        operators.net("conv")(np.ones((2, 2, 2), np.float32))
    assert (seen, torch.backends.cudnn.allow_tf32) == ([False], before)


def triple(sizes) -> Triple:
    first, second, third = sizes
    return first, second, third


@pytest.mark.parametrize("setting", range(SETTINGS))
def test_weights_sum_to_one_everywhere_and_give_any_values_back(setting: int) -> None:
    rng = np.random.default_rng(setting)
    grid = random_grid(rng)
    values = (rng.standard_normal(grid.shape) * 10.0 ** rng.integers(-30, 30, grid.shape)).astype(np.float32)
    total, blended, covered = np.zeros(grid.shape), np.zeros(grid.shape), np.zeros(grid.shape, dtype=int)
    for index in range(grid.chunks):
        weight = weights(grid, index)
        assert weight.shape == grid.chunk
        assert (weight > 0).all()
        total[grid.box(index)] += weight
        blended[grid.box(index)] += weight * values[grid.box(index)]
        covered[grid.box(index)] += 1
    assert abs(total - 1).max() < 1e-14
    assert (total[covered == 1] == 1).all()
    assert np.array_equal(blended.astype(np.float32), values), "not bit for bit"


@pytest.mark.parametrize("setting", range(40))
def test_blocks_divide_the_volume_and_know_their_chunks(setting: int) -> None:
    grid = random_grid(np.random.default_rng(setting), most=100)
    blocks = list(product(*map(range, grid.blocks)))
    times = np.zeros(grid.shape, dtype=int)
    for block in blocks:
        times[grid.block_box(block)] += 1
    assert (times == 1).all()

    def meet(index: int, block: Triple) -> bool:
        return all(mine.start < theirs.stop and theirs.start < mine.stop
                   for mine, theirs in zip(grid.box(index), grid.block_box(block), strict=True))

    for index in range(grid.chunks):
        assert grid.blocks_of(index) == [block for block in blocks if meet(index, block)]
    for block in blocks:
        assert grid.chunks_of(block) == [index for index in range(grid.chunks) if meet(index, block)]


def test_the_last_chunk_is_shifted_back_and_all_have_one_size() -> None:
    grid = Grid((50, 20, 20), (20, 20, 20), (6, 6, 6))
    assert grid.starts(0) == [0, 14, 28, 30]
    assert grid.starts(1) == [0]
    assert grid.counts == (4, 1, 1)


def test_weights_are_the_bump_of_the_paper() -> None:
    grid = Grid((12, 4, 4), (8, 4, 4), (4, 2, 2))
    x = (2 * np.arange(8) + 1) / 8 - 1
    bump = np.exp(-1 / (1 - x * x))
    expected = bump[4:] / (bump[4:] + bump[:4])
    assert np.allclose(weights(grid, 0)[4:, 0, 0], expected, rtol=1e-13)
    assert np.allclose(weights(grid, 0)[:4], 1, atol=0)


def test_weights_of_a_very_long_chunk_do_not_vanish() -> None:
    grid = Grid((9000, 1, 1), (6000, 1, 1), (3000, 0, 0))
    first, second = (weights(grid, index)[:, 0, 0] for index in range(2))
    assert abs(first[3000:] + second[:3000] - 1).max() < 1e-14
    assert 0 < first[4600] < first[4500] < 1


@pytest.mark.parametrize(("shape", "chunk", "overlap", "message"), [
    ((8, 8, 8), (8, 9, 8), (0, 0, 0), "chunk 8x9x8 is larger than the volume 8x8x8 on the second axis; use at most 8"),
    ((8, 8, 8), (8, 8, 7), (0, 0, 4), "overlap 4 is over half of chunk 7 on the third axis; use at most 3"),
    ((8, 8, 8), (0, 8, 8), (0, 0, 0), "chunk 0 and overlap 0 on the first axis; use at least 1 and 0"),
])
def test_sizes_that_do_not_fit_are_one_line(shape: Triple, chunk: Triple, overlap: Triple, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Grid(shape, chunk, overlap)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
