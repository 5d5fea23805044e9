"""Data order: every sample once a pass, full batches, one global batch for every way of cutting it."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.core.random_streams import Streams
from repro.worker.input import data_order
from repro.worker.input.data_order import SampleOrder, StreamOrder
from tests.waiting import until

CALM = settings(max_examples=50, deadline=None, derandomize=True, database=None)

STREAMS = Streams(20151102, 0)
SIZES = st.tuples(st.integers(3, 200), st.integers(1, 500), st.integers(1, 20))


@CALM
@given(SIZES)
def test_batches_chain_shuffled_passes_without_a_gap(sizes: tuple[int, int, int]) -> None:
    count, batch, steps = sizes
    order = SampleOrder(STREAMS, count, batch)
    taken = [order.global_batch(step) for step in range(steps)]
    assert all(len(indices) == batch for _, indices in taken)
    assert [epoch for epoch, _ in taken] == [step * batch // count for step in range(steps)]
    chain = np.concatenate([indices for _, indices in taken])
    for start in range(0, len(chain) - count + 1, count):
        assert sorted(chain[start:start + count].tolist()) == list(range(count))


def test_passes_differ_from_one_another() -> None:
    order = SampleOrder(STREAMS, 1000, 1000)
    assert not np.array_equal(order.global_batch(0)[1], order.global_batch(1)[1])


@CALM
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 5), st.integers(0, 40))
def test_any_world_and_accumulation_cut_the_same_global_batch(
    world: int, accumulation: int, micro: int, step: int
) -> None:
    order = SampleOrder(STREAMS, 37, world * accumulation * micro)
    shares = [order.micro_batches(step, rank, world, accumulation) for rank in range(world)]
    assert {epoch for epoch, _ in shares} == {order.global_batch(step)[0]}
    assert all(len(run) == micro for _, runs in shares for run in runs)
    dealt = [shares[rank][1][number] for number in range(accumulation) for rank in range(world)]
    assert np.array_equal(np.concatenate(dealt), order.global_batch(step)[1])


def test_two_ranks_together_see_the_samples_of_one_process() -> None:
    # The parity gate's reference relies on this: p ranks x a micro-batches = 1 process x (p a) micro-batches.
    order = SampleOrder(STREAMS, 50, 24)
    _, alone = order.micro_batches(1, 0, 1, 6)
    for rank in range(2):
        for number, run in enumerate(order.micro_batches(1, rank, 2, 3)[1]):
            assert np.array_equal(run, alone[number * 2 + rank])


def test_order_does_not_depend_on_earlier_requests() -> None:
    fresh, used = SampleOrder(STREAMS, 10, 4), SampleOrder(STREAMS, 10, 4)
    for step in (9, 0, 30, 2):
        used.global_batch(step)
    assert np.array_equal(used.global_batch(5)[1], fresh.global_batch(5)[1])


def test_the_hash_names_the_order() -> None:
    one = SampleOrder(STREAMS, 10, 4)
    # Golden: records are paired by it. The batch must not matter, the seed and the number of samples must.
    assert one.sha256() == "e18628e8209106fbd5c6d50cad380e1c2eab6d2d45439882809b36cba390ff26"
    assert SampleOrder(STREAMS, 10, 5).sha256() == one.sha256()
    assert SampleOrder(STREAMS, 11, 4).sha256() != one.sha256()
    assert SampleOrder(Streams(20151102, 1), 10, 4).sha256() != one.sha256()
    assert SampleOrder(Streams(20151103, 0), 10, 4).sha256() != one.sha256()


def test_a_pass_is_drawn_before_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_order, "DRAWN_AHEAD", 10)
    drawn: list[tuple[int, str]] = []
    draw = SampleOrder.draw

    def noted(self: SampleOrder, epoch: int) -> np.ndarray:
        drawn.append((epoch, threading.current_thread().name.partition("_")[0]))
        return draw(self, epoch)

    monkeypatch.setattr(SampleOrder, "draw", noted)
    ahead, order = SampleOrder(STREAMS, 20, 8), SampleOrder(STREAMS, 20, 8)
    ahead.prepare(0)
    until(lambda: len(drawn) >= 2)
    main = threading.current_thread().name
    assert drawn == [(0, main), (1, "repro-order")]
    for step in (0, 1, 2, 3, 4):
        ahead.global_batch(step)
    assert [epoch for epoch, thread in drawn if thread == main] == [0], "no step has waited for a draw"
    monkeypatch.setattr(data_order, "DRAWN_AHEAD", 1000)
    assert [ahead.global_batch(step)[1].tolist() for step in range(9)] == \
        [order.global_batch(step)[1].tolist() for step in range(9)]


@CALM
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 5), st.integers(4, 40))
def test_a_stream_gives_each_rank_its_shard_from_beginning_to_end(
    world: int, accumulation: int, micro: int, count: int
) -> None:
    order = StreamOrder(count, world * accumulation * micro, world, accumulation)
    for rank in range(world):
        low, high = rank * count // world, (rank + 1) * count // world
        read = np.concatenate([run for step in range(9) for run in
                               order.micro_batches(step, rank, world, accumulation)[1]])
        assert read.tolist() == [low + place % (high - low) for place in range(len(read))]
    chain = np.concatenate([order.global_batch(step)[1] for step in range(9)])
    assert np.array_equal(chain[:count], order.draw(0)[:len(chain)])


def test_a_stream_s_hash_depends_on_the_ranks() -> None:
    named = [StreamOrder(30, 4, world, 1).sha256() for world in (1, 2, 4)]
    assert len({*named, SampleOrder(Streams(1, 0), 30, 4).sha256()}) == 4
