"""Plans of tensor parallel layers: which numbers of processes make a grid, what cannot be cut, the suite tensor3d."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.core.errors import SuiteError
from repro.core.machine import Machine
from repro.papers.tensor3d import formula
from repro.papers.tensor3d.layout import Dimension, Grid, Share, grid_of, shares
from repro.suite.planning.plan import Plan
from tests.plans import measurement_suite, plan_file, planned


def plan(folder: Path, options: str, processes: int) -> Plan:
    return planned(folder, measurement_suite(
        "layers", f"{{kind: tensor-layer, {options}}}", "matrix: {comm: [ring, tree]}\n", 2, processes=processes,
        stop="{repeats: 2}"), machine=Machine("cpu", 0, 8))


@pytest.mark.parametrize(("options", "processes", "message"), [
    ("dimension: 2d", 8, "8 processes are not a square, which 2d needs; use one of: 9, 4"),
    ("dimension: 3d", 4, "4 processes are not a cube, which 3d needs; use one of: 1, 8"),
    ("dimension: 2.5d", 6, "6 processes are not q^2 d with 1 <= d <= q, which 2.5d needs; use one of: 4, 8"),
    ("dimension: 3d, batch: 6", 8, "batch 6 cannot be cut into 4 equal parts, as 3d on 8 processes needs; use a "),
    ("dimension: 1d, hidden: 12", 8, "hidden 12 cannot be cut into 8 equal parts, as 1d on 8 processes needs"),
    ("dimension: 2d, layer: attention, heads: 3, hidden: 6", 4, "heads 3 cannot be cut into 2 equal parts"),
    ("dimension: 1d, layer: attention, heads: 3, hidden: 8", 1, "hidden 8 is not divisible by heads 3"),
    ("dimension: 4d", 8, "dimension"), ("layer: mlp", 8, "dimension"), ("dimension: 3d, dtype: int8", 8, "dtype"),
])
def test_what_does_not_fit_is_one_line_at_plan_time(tmp_path: Path, options: str, processes: int, message: str) -> None:
    with pytest.raises(SuiteError) as caught:
        plan(tmp_path, options, processes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_suite_skips_what_makes_no_grid_and_plans_the_rest() -> None:
    made = plan_file("tensor3d")
    assert len(made.cells) + len([item for item in made.skipped if "not a " not in item.reason]) == 5
    assert [item.reason.partition(": ")[2].partition(",")[0] for item in made.skipped if "not a " in item.reason] == [
        "8 processes are not a square", "4 processes are not a cube"]
    assert made.suite.metric == "operation_time"


@pytest.mark.parametrize(("dimension", "processes", "grid"), [
    ("1d", 6, Grid(1, 6, 1)), ("2d", 64, Grid(8, 8, 1)), ("2.5d", 64, Grid(4, 4, 4)), ("2.5d", 4, Grid(2, 2, 1)),
    ("2.5d", 18, Grid(3, 3, 2)), ("3d", 64, Grid(4, 4, 4)), ("3d", 125, Grid(5, 5, 5)),
])
def test_grids(dimension: Dimension, processes: int, grid: Grid) -> None:
    assert grid_of(dimension, processes) == grid
    assert sorted(grid.rank(*grid.place(rank)) for rank in range(processes)) == list(range(processes))


@pytest.mark.parametrize(("dimension", "processes"), [
    ("1d", 1), ("1d", 2), ("1d", 8), ("2d", 1), ("2d", 4), ("2d", 64), ("2.5d", 1), ("2.5d", 4), ("2.5d", 8),
    ("2.5d", 18), ("3d", 1), ("3d", 8), ("3d", 27), ("3d", 64),
])
def test_shares_cover_every_matrix_and_the_first_result_is_the_second_input(
    dimension: Dimension, processes: int
) -> None:
    grid = grid_of(dimension, processes)
    first, second = ([shares(dimension, grid, rank, later) for rank in range(processes)] for later in (False, True))
    assert [item.y for item in first] == [item.x for item in second]
    assert [item.y for item in second] == [item.x for item in first]
    for matrix in ("x", "a", "y"):
        held: list[Share] = [getattr(item, matrix) for item in first]
        parts = held[0].row_parts * held[0].column_parts
        assert len({(item.row, item.column) for item in held}) == parts
        assert dimension != "3d" or parts == processes  # nothing is held twice


def test_the_formulas_of_a_rank_are_those_of_the_paper() -> None:
    size, p, q = formula.Size(640, 1024, 2048), 64, 4
    x, a, y = 640 * 1024, 1024 * 2048, 640 * 2048
    grid = grid_of("3d", p)
    assert formula.held("3d", grid, size) == formula.Held(x // p, a // p, y // p)
    assert formula.sent_numbers("3d", grid, [size]) == (q - 1) * (3 * x + 3 * a + 2 * y) / p
    assert formula.held("1d", grid_of("1d", p), size) == formula.Held(x, a // p, y // p)
    assert formula.sent_numbers("1d", grid_of("1d", p), [size]) == 2 * 63 / 64 * x
    assert formula.held("2d", grid_of("2d", p), size) == formula.Held(x // p, a // p, y // p)
    assert formula.sent_numbers("2d", grid_of("2d", p), [size]) == 3 * 7 * (x + a) / p
    assert formula.held("2.5d", grid, size) == formula.Held(x // p, a // 16, y // p)
    assert formula.sent_numbers("2.5d", grid, [size]) == 3 * 3 * (x / p + a / 16) + 2 * 3 / 4 * a / 16


def test_tensors_on_a_gpu_take_whole_blocks() -> None:
    account = formula.Account(itemsize=4, block=formula.GPU_BLOCK)
    account.take(1, 128, 129)
    assert account.peak == 512 + 512 + 1024
    account.free(129)
    assert account.now == 1024
    grid, sizes = grid_of("2d", 4), [formula.Size(10, 20, 30)]
    exact, whole = (formula.peak_bytes("2d", grid, sizes, itemsize=4, block=block) for block in (1, 512))
    assert exact % 512 and whole % 512 == 0 and whole > exact


def test_an_account_keeps_the_largest_sum() -> None:
    account = formula.Account(itemsize=1, block=1)
    account.take(3, 4)
    account.free(5)
    account.take(4)
    assert (account.now, account.peak) == (6, 7)
