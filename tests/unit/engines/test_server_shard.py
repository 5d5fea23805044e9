"""One shard of a parameter server: which weights a snapshot holds, also after a worker has gone."""

from __future__ import annotations

import threading

import pytest

from repro.optimizers.rules import Sgd
from repro.papers.server.async_server import AsyncServer
from repro.seams.training import ServerWork

torch = pytest.importorskip("torch")

from repro.papers.server.shard import Push, Shard  # noqa: E402

RATE = 0.5
GRID = (2, 3, 5)


def shard(workers: int = 2) -> Shard:
    named = [("a", torch.tensor([1.0, 2.0])), ("b", torch.tensor([[3.0]]))]
    made = Shard(named, AsyncServer(mode="async").rules(workers), Sgd(lr=RATE, momentum=0), divide_by_staleness=False)
    made.begin(ServerWork(tickets=10, rate_of=lambda _: RATE, grid=GRID, now=lambda: 0), deals=False)
    return made


def push(to: Shard, number: int) -> None:
    to.push(Push(worker=number % 2, read=to.version, loss=0.0, rate=None, gradient=torch.full((3,), 2.0 ** number)),
            torch.empty(3))


def after(updates: int) -> torch.Tensor:
    """The weights after so many updates, by hand: minus the rate times 1 + 2 + 4 + ..."""
    return torch.tensor([1.0, 2.0, 3.0]) - RATE * (2.0 ** updates - 1)


def test_a_snapshot_holds_the_weights_after_that_many_updates_and_no_later_ones() -> None:
    made = shard()
    for number in range(6):
        push(made, number)
    for version in GRID:
        assert torch.equal(made.snapshot(version), after(version))
    assert torch.equal(made.flat, after(6))


def test_a_snapshot_waits_for_its_update() -> None:
    made, found = shard(), []
    push(made, 0)
    waiting = threading.Thread(target=lambda: found.append(made.snapshot(2)))
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive() and not found
    push(made, 1)
    push(made, 2)
    waiting.join(10)
    assert torch.equal(found[0], after(2))


def test_after_a_loss_a_snapshot_lacks_at_most_the_update_of_the_lost_worker() -> None:
    made, found = shard(), []
    made.lose(1)
    waiting = threading.Thread(target=lambda: found.append(made.snapshot(3)))
    push(made, 0)
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive(), "two updates are missing, of which the lost worker owed one"
    push(made, 2)
    waiting.join(10)
    assert torch.equal(found[0], torch.tensor([1.0, 2.0, 3.0]) - RATE * (1 + 4))
