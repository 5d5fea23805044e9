"""The formulas of the scale model against results worked out by hand."""

from __future__ import annotations

import math

import pytest

from repro.comm.algorithms.ring import Ring
from repro.comm.algorithms.tree import ReductionTree
from repro.comm.cost_model import fit_parameters, fit_robustly
from repro.comm.schedule import Transfer
from repro.papers.predict.formula import computation_ratio, expected_maximum, interpolated, speed_up
from repro.papers.predict.sharing import cost_by_class, nccl_cost, shared_path

ONE_PIECE = ReductionTree(shape="binomial", chunk_kib=None)


@pytest.mark.parametrize(("times", "right"), [(1, 2.0), (2, 22 / 9), (3, 72 / 27), (1000, 3.0)])
def test_the_slowest_of_so_many_draws(times: int, right: float) -> None:
    # of two draws from 1, 2, 3 the larger is 1 in 1 of 9 cases, 2 in 3, 3 in 5
    assert expected_maximum([3, 1, 2], times) == pytest.approx(right)


def test_the_computation_of_other_samples() -> None:
    assert computation_ratio({8: 0.2}, 2, 8) == 0.25  # one batch: in proportion
    assert computation_ratio({8: 0.2, 16: 0.3}, 2, 8) == pytest.approx((0.1 + 2 * 0.0125) / 0.2)
    assert computation_ratio({8: 0.2, 16: 0.3}, 8, 8) == 1.0


def test_epochs_between_two_batches_go_by_logarithms() -> None:
    points = {100: 10.0, 400: 40.0}
    assert interpolated(points, 200) == pytest.approx(20.0)
    assert interpolated(points, 400) == 40.0
    assert interpolated(points, 401) is None
    assert interpolated(points, 99) is None


def test_speed_up_is_in_samples_a_second() -> None:
    # 8 workers that compute 0.7 s and communicate 0.1 s train 7 times as many samples a second
    assert speed_up(0.8, 64, 0.7, 8) == pytest.approx(7.0)


@pytest.mark.parametrize("world", [2, 4, 8, 16, 32])
def test_a_tree_in_one_piece_shares_its_roots_link(world: int) -> None:
    """Up log2 p pieces; down a rank sends to its children one after the other, or to two at once; with all at once the
    last to finish goes on."""
    deep = int(math.log2(world))
    for at_once, pieces in ((1, 2 * deep), (2, max(2, 3 * deep - 1)), (deep, deep * (deep + 3) // 2)):
        path = shared_path(ONE_PIECE.all_reduce(world, 1000, 4), range(world), 4, at_once=at_once)
        assert path == pytest.approx((4000 * pieces, 0), abs=1e-6)
    assert ONE_PIECE.cost(world, 1000, 4).path_bytes == 4000 * 2 * deep


@pytest.mark.parametrize("world", [2, 3, 8])
def test_the_messages_of_a_ring_never_meet(world: int) -> None:
    count = 120 * world
    between, within = shared_path(Ring().all_reduce(world, count, 4), range(world), 4)
    assert (between, within) == pytest.approx((Ring().cost(world, count, 4).path_bytes, 0), abs=1e-6)


def test_a_schedule_is_divided_by_the_links_it_uses() -> None:
    # ranks 0, 1 and 2, 3 share nodes: first 1 -> 0 and 3 -> 2 within, then 2 -> 0 between, and back
    between, within = cost_by_class(ONE_PIECE.all_reduce(4, 1000, 4), [0, 0, 1, 1], 4)
    assert (between.rounds, between.path_bytes) == (2, 8000)
    assert (within.rounds, within.path_bytes) == (2, 8000)


def test_messages_share_the_link_of_their_node() -> None:
    """At once 0 -> 2 and 1 -> 3 between two nodes, 0 -> 1 within the first, where a byte takes a quarter as long."""
    items = [Transfer(0, 0, 2, 0, 100, False), Transfer(0, 1, 3, 0, 100, False), Transfer(0, 0, 1, 0, 100, False)]
    assert shared_path(items, [0, 0, 1, 1], 1, 0.25, at_once=2) == pytest.approx((200, 0), abs=1e-6)
    then = [*items[:2], Transfer(1, 2, 3, 0, 100, False)]
    assert shared_path(then, [0, 0, 1, 1], 1, 0.25) == pytest.approx((200, 100))
    assert shared_path(items[2:], [0, 0, 1, 1], 1, 0.25) == pytest.approx((0, 100), abs=1e-6)


def test_what_a_node_sends_to_itself_together_is_added_up() -> None:
    both = [Transfer(0, 0, 1, 0, 100, False), Transfer(0, 1, 0, 0, 100, False)]
    for together, size in ((False, 100), (True, 200)):
        assert cost_by_class(both, [0, 0], 1, together)[1].path_bytes == size
        assert shared_path(both, [0, 0], 1, 0.25, together) == pytest.approx((0, size), abs=1e-6)


@pytest.mark.parametrize(("kind", "ranks", "nodes", "between", "within"), [
    ("ring", 8, 1, (0, 0), (14, 1750)), ("ring", 16, 2, (2, 1875), (28, 0)), ("tree", 8, 1, (0, 0), (14, 2000)),
    ("tree", 32, 4, (4, 2000), (14, 0)),
])
def test_nccl_adds_up_the_latencies_of_a_path(
    kind: str, ranks: int, nodes: int, between: tuple[int, int], within: tuple[int, int]
) -> None:
    found = nccl_cost(kind, ranks, nodes, 1000)
    assert [(cost.rounds, cost.path_bytes) for cost in found] == [between, within]


def test_four_parameters_are_fitted() -> None:
    rows = [(1, 10, 0, 0), (4, 20, 1, 10), (9, 30, 2, 25), (16, 40, 2, 45), (25, 60, 9, 70)]
    true = (0.5, 0.25, 1.0, 0.125)
    seconds = [sum(a * b for a, b in zip(row, true, strict=True)) for row in rows]
    assert fit_parameters(rows, seconds, 4) == pytest.approx(true)


def test_a_sample_that_fits_no_other_is_left_aside_and_no_link_is_faster_than_stated() -> None:
    rows, true = [(1, 10), (1, 20), (1, 40), (1, 60), (1, 80)], (2.0, 0.5)
    seconds = [sum(a * b for a, b in zip(row, true, strict=True)) for row in rows]
    seconds[1] *= 3
    assert fit_robustly(rows, seconds, (0.0, 0.0)) == pytest.approx(true)
    assert fit_robustly(rows, seconds, (0.0, 0.6))[1] == pytest.approx(0.6)
    assert fit_parameters(rows, seconds, 2) != pytest.approx(true, rel=0.2)
