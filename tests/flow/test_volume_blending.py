"""What operators write: the input again, bit for bit, under the identity; the net's own output but at seams."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import zarr

from repro.papers.chunkflow.grid import Grid
from repro.papers.chunkflow.operators import Blend, Infer, Piece, Read, Write, checked_output, net
from repro.papers.chunkflow.queues import open_queue
from repro.papers.chunkflow.store import Output
from repro.papers.chunkflow.volume_workers import work
from tests.unit.volumes.test_grid_and_mask import SETTINGS, random_grid


def in_process(folder: Path, made: np.ndarray, grid: Grid, which: str = "identity") -> Output:
    """Work on all tasks with one worker in this process; return the output."""
    folder.mkdir()
    zarr.save_array(str(folder / "v"), made)
    queue = open_queue(f"sqlite:{folder}/t.db", make=True)
    queue.add(Output.create(folder / "out", grid, str(made.dtype)).tasks())
    chain = [Read(str(folder / "v")), Infer(which), Blend(), Write(str(folder / "out"))]
    output = checked_output(chain)
    tally = work(queue, chain, output, print)
    queue.close()
    assert (tally.done, tally.failed, tally.late) == (grid.chunks, 0, 0)
    return Output(folder / "out")


@pytest.mark.parametrize("settings", [6, pytest.param(SETTINGS, marks=pytest.mark.slow)])
def test_the_identity_gives_random_volumes_back_bit_for_bit(tmp_path: Path, settings: int) -> None:
    rng = np.random.default_rng(settings)
    for number in range(settings):
        grid = random_grid(rng, most=24)
        kind = ("float32", "uint8", "uint16", "int32")[number % 4]
        made = (rng.standard_normal(grid.shape) if kind == "float32" else rng.integers(0, 256, grid.shape)).astype(kind)
        assert np.array_equal(in_process(tmp_path / str(number), made, grid).volume[:], made), (grid, kind)
        shutil.rmtree(tmp_path / str(number))


def test_float64_comes_back_up_to_rounding(tmp_path: Path) -> None:
    made = np.random.default_rng(0).standard_normal((20, 12, 12))
    found = in_process(tmp_path / "one", made, Grid(made.shape, (8, 8, 8), (4, 4, 4))).volume[:]
    assert (abs(found - made) <= 4 * np.spacing(abs(made))).all()


def test_the_net_on_one_chunk_is_the_net_and_with_more_chunks_differs_at_seams_only(tmp_path: Path) -> None:
    made = np.random.default_rng(0).standard_normal((40, 24, 24), dtype=np.float32)
    whole = net("conv")(made)
    one = in_process(tmp_path / "one", made, Grid(made.shape, made.shape, (0, 0, 0)), "conv")
    assert np.array_equal(one.volume[:], whole)
    two = in_process(tmp_path / "two", made, Grid(made.shape, (24, 24, 24), (4, 0, 0)), "conv")
    error = abs(two.volume[:] - whole).max(axis=(1, 2))
    assert (error[:16] < 1e-5).all() and (error[17:23] > 1e-3).all() and (error[24:] < 1e-5).all()


def test_a_repeated_task_changes_nothing_and_one_that_is_missing_is_seen(tmp_path: Path) -> None:
    made = np.random.default_rng(0).standard_normal((20, 12, 12), dtype=np.float32)
    grid = Grid(made.shape, (8, 8, 8), (4, 4, 4))
    output = in_process(tmp_path / "one", made, grid)
    again = Write(str(tmp_path / "one/out"))
    for index in (0, 5, 5, 7):
        piece = Blend().apply(Read(str(tmp_path / "one/v")).apply(Piece(index), grid), grid)
        again.apply(piece, grid)
    assert np.array_equal(output.volume[:], made)
    output.done[5] = 0
    assert output.left() == 1
