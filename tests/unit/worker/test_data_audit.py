"""The tallies of the consumed samples: identical however a run is cut, different for anything else."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.core.random_streams import Streams
from repro.seams.training import Fed, Job, TrainingParts
from repro.worker.input.data_audit import DataAudit, Tally, add_tallies, draws_sha256
from repro.worker.input.data_order import SampleOrder

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
