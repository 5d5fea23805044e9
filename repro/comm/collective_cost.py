"""Cost of one collective, computed from the algorithm's schedule: bytes of every rank, rounds, path, reduction."""

from __future__ import annotations

from typing import NamedTuple

from repro.comm.algorithm import Algorithm, Operation
from repro.comm.schedule import ScheduleCost, cost


class CollectiveCost(NamedTuple):
    """Bytes and cost of one collective on the whole group."""

    sent: tuple[int, ...]
    """Bytes, by rank."""
    received: tuple[int, ...]
    cost: ScheduleCost


def collective_cost(
    algorithm: Algorithm, operation: Operation, world: int, count: int, itemsize: int
) -> CollectiveCost:
    """Return bytes and cost of one collective on `count` elements of the whole buffer (broadcast: from rank 0)."""
    root = (0,) if operation == "broadcast" else ()
    transfers = list(getattr(algorithm, operation)(world, count, itemsize, *root))
    sent, received = [0] * world, [0] * world
    for transfer in transfers:
        size = (transfer.stop - transfer.start) * itemsize
        sent[transfer.source] += size
        received[transfer.target] += size
    return CollectiveCost(tuple(sent), tuple(received), cost(transfers, itemsize))
