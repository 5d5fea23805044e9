"""The seeded order of samples, and the tallies of the consumed ones, identical however a run is cut."""

from __future__ import annotations

import threading
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.core.random_streams import Streams
from repro.seams.training import Fed, Job, TrainingParts
from repro.worker.input import data_order
from repro.worker.input.data_audit import DataAudit, Tally, add_tallies, draws_sha256
from repro.worker.input.data_order import DataOrder, SampleOrder, StreamOrder
from tests.waiting import until

SAMPLES, STEPS = 37, 9
CALM = settings(max_examples=60, deadline=None, derandomize=True, database=None)


class Reader:
    """Looks batches up; can be set to look up something else."""

    def __init__(self, shift: int = 0, epoch_shift: int = 0) -> None:
        self.shift, self.epoch_shift = shift, epoch_shift
        self.seen: list[Fed] = []

    def draws(self, epoch: int, indices: np.ndarray) -> np.ndarray:
        return Streams(1, 0).generator("augmentation", epoch).integers(9, size=SAMPLES)[indices]

    def train(self, epoch: int, indices: np.ndarray) -> None:
        taken = (indices + self.shift) % SAMPLES
        self.seen.append((taken, self.draws(epoch + self.epoch_shift, taken)))

    def fed(self) -> list[Fed]:
        seen, self.seen = self.seen, []
        return seen


def parts(reader: Reader | None) -> TrainingParts:
    held: dict[str, Any] = {"fed": reader.fed, "draws": reader.draws} if reader else {}
    none = cast(Any, None)
    return TrainingParts(none, none, {}, none, none, none, none, **held)


def job(rank: int, world: int, accumulation: int) -> Job:
    none = cast(Any, None)
    return Job(rank, world, "cpu", 1, accumulation, None, none, none, none)


def play(batch: int, world: int, accumulation: int, reader: Any = Reader, swap: bool = False) -> list[Tally]:
    """fed, expected, drawn, expected of a run of all ranks, counted every two steps."""
    order = SampleOrder(Streams(1, 0), SAMPLES, batch)
    shares = []
    for rank in range(world):
        mine = reader() if reader else None
        taken: list[Fed] = []
        audit = DataAudit(parts(mine), order, job(rank, world, accumulation))
        for step in range(STEPS):
            epoch, micros = order.micro_batches(step, rank, world, accumulation)
            if swap and step == 4 and rank == 0:
                micros[0] = micros[0][::-1]
            taken += [(indices, None) for indices in micros]
            for indices in micros if mine else ():
                mine.train(epoch, indices)
            if step % 2:
                audit.count(mine.fed() if mine else taken)
                taken = []
        audit.count(mine.fed() if mine else taken)
        shares.append(audit.tallies(STEPS * batch))
    return [add_tallies([share[place] for share in shares]) for place in range(4)]


@CALM
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 8))
def test_shares_of_any_cut_add_up_to_the_seeds_sum(world: int, accumulation: int, micro: int) -> None:
    batch = world * accumulation * micro
    fed, order, drawn, draws = play(batch, world, accumulation)
    assert fed.lanes == order.lanes and drawn.lanes == draws.lanes
    alone = play(batch, 1, 1)
    assert (fed.hex(), drawn.hex()) == (alone[0].hex(), alone[2].hex())


def test_other_samples_another_order_and_other_draws_show() -> None:
    fine = play(12, 2, 3)
    neighbours = play(12, 2, 3, lambda: Reader(shift=1))
    assert neighbours[0].lanes != neighbours[1].lanes
    swapped = play(12, 2, 3, swap=True)
    assert swapped[0].lanes != swapped[1].lanes == fine[1].lanes
    late = play(12, 2, 3, lambda: Reader(epoch_shift=1))
    assert late[0].lanes == late[1].lanes
    assert late[2].lanes != late[3].lanes


def test_a_workload_without_fed_is_audited_by_requested_samples() -> None:
    fed, order, drawn, draws = play(12, 2, 3, None)
    assert fed.lanes == order.lanes
    assert drawn.lanes == draws.lanes == [0, 0]


def test_a_call_too_many_or_too_few_shows() -> None:
    order = SampleOrder(Streams(1, 0), SAMPLES, 4)
    audit = DataAudit(parts(None), order, job(0, 1, 1))
    audit.count([(order.micro_batches(step, 0, 1, 1)[1][0], None) for step in range(3)])
    fed, expected, *_ = audit.tallies(8)
    assert fed != expected
    assert audit.tallies(12)[0] == audit.tallies(12)[1]


@CALM
@given(st.lists(st.tuples(st.integers(0, 1 << 40), st.integers(-5, 1 << 40)), min_size=1, max_size=30), st.randoms())
def test_a_tally_is_a_sum_over_pairs(pairs: list[tuple[int, int]], random: Any) -> None:
    def tally(items: list[tuple[int, int]]) -> Tally:
        found = Tally()
        found.add(np.array([position for position, _ in items]), np.array([value for _, value in items]))
        return found

    cut = random.randrange(len(pairs) + 1)
    split = add_tallies([tally(part).lanes for part in (pairs[:cut], pairs[cut:]) if part])
    assert split.lanes == tally(pairs).lanes
    moved = [(pairs[0][0] + 1, pairs[0][1]), *pairs[1:]]
    assert tally(moved).lanes != tally(pairs).lanes


def test_the_hash_of_draws_is_that_of_the_first_passes() -> None:
    reader = Reader()
    assert draws_sha256(reader.draws, SAMPLES) == draws_sha256(Reader().draws, SAMPLES)
    assert draws_sha256(reader.draws, SAMPLES, passes=1) != draws_sha256(reader.draws, SAMPLES)


@pytest.mark.parametrize("name", ["digits", "digits-mlp", "synthetic"])
def test_bundled_workloads_report_their_lookups(name: str) -> None:
    pytest.importorskip("torch")
    from repro.core import registry

    options = {"augment": True} if name != "synthetic" else {"samples": 50, "held_out": 10, "image_size": 8}
    built = registry.load("workload", name)(**options).build(Streams(1, 0), "cpu")
    assert built.fed is not None
    built.open_data()
    first, second = np.array([3, 1, 40]), np.array([7, 7])
    images = [built.train_batch(2, first)[0], built.train_batch(3, second)[0]]
    (one, one_drawn), (two, two_drawn) = built.fed()
    assert one.tolist() == first.tolist() and two.tolist() == second.tolist()
    assert built.fed() == []
    if name == "synthetic":
        assert one_drawn is None and two_drawn is None and built.draws is None
        return
    assert built.draws is not None
    assert one_drawn is not None and one_drawn.tolist() == built.draws(2, first).tolist()
    assert two_drawn is not None and two_drawn.tolist() == built.draws(3, second).tolist()
    assert len({tuple(built.draws(epoch, first)) for epoch in range(4)}) > 1
    assert len(images) == 2


STREAMS = Streams(20151102, 0)


def global_batch(order: DataOrder, step: int) -> tuple[int, np.ndarray]:
    """The epoch and the indices of a step of one process."""
    epoch, (indices,) = order.micro_batches(step, 0, 1, 1)
    return epoch, indices


SIZES = st.tuples(st.integers(3, 200), st.integers(1, 500), st.integers(1, 20))


@CALM
@given(SIZES)
def test_batches_chain_shuffled_passes_without_a_gap(sizes: tuple[int, int, int]) -> None:
    count, batch, steps = sizes
    order = SampleOrder(STREAMS, count, batch)
    taken = [global_batch(order, step) for step in range(steps)]
    assert all(len(indices) == batch for _, indices in taken)
    assert [epoch for epoch, _ in taken] == [step * batch // count for step in range(steps)]
    chain = np.concatenate([indices for _, indices in taken])
    for start in range(0, len(chain) - count + 1, count):
        assert sorted(chain[start:start + count].tolist()) == list(range(count))


def test_passes_differ_from_one_another() -> None:
    order = SampleOrder(STREAMS, 1000, 1000)
    assert not np.array_equal(global_batch(order, 0)[1], global_batch(order, 1)[1])


@CALM
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 5), st.integers(0, 40))
def test_any_world_and_accumulation_cut_the_same_global_batch(
    world: int, accumulation: int, micro: int, step: int
) -> None:
    order = SampleOrder(STREAMS, 37, world * accumulation * micro)
    shares = [order.micro_batches(step, rank, world, accumulation) for rank in range(world)]
    assert {epoch for epoch, _ in shares} == {global_batch(order, step)[0]}
    assert all(len(run) == micro for _, runs in shares for run in runs)
    dealt = [shares[rank][1][number] for number in range(accumulation) for rank in range(world)]
    assert np.array_equal(np.concatenate(dealt), global_batch(order, step)[1])


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
        global_batch(used, step)
    assert np.array_equal(global_batch(used, 5)[1], global_batch(fresh, 5)[1])


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
        global_batch(ahead, step)
    assert [epoch for epoch, thread in drawn if thread == main] == [0], "no step has waited for a draw"
    monkeypatch.setattr(data_order, "DRAWN_AHEAD", 1000)
    assert [global_batch(ahead, step)[1].tolist() for step in range(9)] == \
        [global_batch(order, step)[1].tolist() for step in range(9)]


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
    chain = np.concatenate([global_batch(order, step)[1] for step in range(9)])
    assert np.array_equal(chain[:count], order.draw(0)[:len(chain)])


def test_a_stream_s_hash_depends_on_the_ranks() -> None:
    named = [StreamOrder(30, 4, world, 1).sha256() for world in (1, 2, 4)]
    assert len({*named, SampleOrder(Streams(1, 0), 30, 4).sha256()}) == 4
