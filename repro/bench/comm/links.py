"""The links before any collective: messages there and back between neighbours, one link at a time."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

SIZES = (1024, 16384, 262144)
LONG_SECONDS, LEAST, MOST = 0.15, 1 << 19, 1 << 24
"""The largest message keeps the slowest link busy for so long, within so many bytes."""
POINT_SECONDS = 0.3


def links(world: int) -> list[tuple[int, int]]:
    """Every rank to the next; with two ranks there is one link."""
    return [(sender, (sender + 1) % world) for sender in range(world if world > 2 else world - 1)]


def measure_links(rank: int, world: int, group: Any) -> list[dict[str, Any]]:
    """One entry a link and size with seconds one way, the same on every rank.

    1. Small messages, for latency.
    2. From the slowest link: how large a message must be to show the rate.
    3. That message over every link.
    """
    # 1. latency
    found = [_time(group, rank, *link, size) for link in links(world) for size in SIZES]
    # 2. size of the large message
    slowest = min(item["size"] / min(item["seconds"]) for item in _known(group, found) if item["size"] == SIZES[-1])
    large = min(MOST, max(LEAST, int(slowest * LONG_SECONDS) // 4096 * 4096))
    # 3. rate
    found += [_time(group, rank, *link, large) for link in links(world)]
    return _known(group, found)


def _known(group: Any, found: list[dict[str, Any] | None]) -> list[dict[str, Any]]:
    """What all ranks timed, from what this one did."""
    mine = [item for item in found if item is not None]
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, mine, group=group)
    return [item for items in gathered for item in items]


def _time(group: Any, rank: int, sender: int, receiver: int, size: int) -> dict[str, Any] | None:
    """Half round trips of one message; timed by the sender, None on all other ranks."""
    block = torch.zeros(size, dtype=torch.uint8)
    dist.barrier(group)
    if rank not in (sender, receiver):
        return None
    trips = _trips(_round(group, rank, sender, receiver, block), group, rank, sender, receiver)
    seconds = [_round(group, rank, sender, receiver, block) / 2 for _ in range(trips)]
    if rank != sender:
        return None
    return {"sender": sender, "receiver": receiver, "size": size, "seconds": seconds, "median": median(seconds)}


def _trips(first: float, group: Any, rank: int, sender: int, receiver: int) -> int:
    """How many, as the sender says: the first trip was for warming up."""
    box = torch.tensor([min(12, max(3, int(POINT_SECONDS / max(first, 1e-6))))])
    if rank == sender:
        dist.send(box, receiver, group=group)
    else:
        dist.recv(box, sender, group=group)
    return int(box)


def _round(group: Any, rank: int, sender: int, receiver: int, block: torch.Tensor) -> float:
    begin = time.perf_counter()
    if rank == sender:
        dist.send(block, receiver, group=group)
        dist.recv(block, receiver, group=group)
    else:
        dist.recv(block, sender, group=group)
        dist.send(block, sender, group=group)
    return time.perf_counter() - begin
