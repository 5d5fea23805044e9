"""Measure the links before any collective: round trips between neighbours, one link at a time."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

SIZES = (1024, 16384, 262144)
LONG_SECONDS, LEAST, MOST = 0.15, 1 << 19, 1 << 24
"""The large message keeps the slowest link busy for LONG_SECONDS, within LEAST and MOST bytes."""
POINT_SECONDS = 0.3
TRIES, ENOUGH = 3, 0.97
"""A link below this share of the fastest was held up by other work, or is slower: it is measured again, at most so many
times, and the best is kept. A bound that rests on a held-up link is one that measured times undercut."""


def links(world: int) -> list[tuple[int, int]]:
    """Return the links from every rank to the next; two ranks have one link."""
    return [(sender, (sender + 1) % world) for sender in range(world if world > 2 else world - 1)]


def measure_links(rank: int, world: int, group: Any) -> list[dict[str, Any]]:
    """Measure every link; return one entry per link and size with one-way seconds, equal on all ranks.

    1. Small messages, for latency.
    2. The size of a message large enough to show the rate, from the slowest link.
    3. That message over every link.
    4. Again over links that look slow.
    """
    # 1. latency
    found = [_time(group, rank, *link, size) for link in links(world) for size in SIZES]
    # 2. size of the large message
    slowest = min(item["size"] / min(item["seconds"]) for item in _known(group, found) if item["size"] == SIZES[-1])
    large = min(MOST, max(LEAST, int(slowest * LONG_SECONDS) // 4096 * 4096))
    # 3. rate
    found += [_time(group, rank, *link, large) for link in links(world)]
    # 4. held up, or slow
    for _ in range(TRIES):
        if not (slow := _slow(_known(group, found), large)):
            break
        found += [_time(group, rank, *link, large) for link in slow]
    return _known(group, found)


def _slow(found: list[dict[str, Any]], size: int) -> list[tuple[int, int]]:
    """Return the links whose best transfer of `size` bytes took much longer than the fastest link's."""
    best: dict[tuple[int, int], float] = {}
    for item in found:
        if item["size"] == size:
            link = (item["sender"], item["receiver"])
            best[link] = min([*item["seconds"], best.get(link, float("inf"))])
    return sorted(link for link, seconds in best.items() if ENOUGH * seconds > min(best.values()))


def _known(group: Any, found: list[dict[str, Any] | None]) -> list[dict[str, Any]]:
    """Gather the times of all ranks."""
    mine = [item for item in found if item is not None]
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, mine, group=group)
    return [item for items in gathered for item in items]


def _time(group: Any, rank: int, sender: int, receiver: int, size: int) -> dict[str, Any] | None:
    """Time half round trips of one message; returns None on all ranks but the sender."""
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
    """Return the number of trips, decided by the sender from the first (warm-up) trip."""
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
