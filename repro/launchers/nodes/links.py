"""Latency and rate of the links between nodes, before a run: each node sends to the next, one at a time, with gloo."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ENTRY = f"{__name__}:main"
FILE = "links.json"
PINGS = 20
SIZE, TRIES = 4 << 20, 3


def main(folder: str, payload: Mapping[str, Any]) -> None:
    """Measure all links of a ring of nodes; the entry point of one rank on each. Rank 0 writes `FILE`.

    Latency is half the median of `PINGS` exchanges of 8 bytes; rate is the best of `TRIES` transfers of `SIZE` bytes,
    less one latency.
    """
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    small, large = torch.zeros(1, dtype=torch.int64), torch.zeros(SIZE, dtype=torch.uint8)
    found: list[dict[str, float]] = []
    for sender in range(world):
        receiver = (sender + 1) % world
        dist.barrier()
        if rank == sender:
            pings = [_exchange(dist, small, small, receiver) for _ in range(PINGS)]
            latency = statistics.median(pings) / 2
            transfers = [_exchange(dist, large, small, receiver) for _ in range(TRIES)]
            found.append({"sender": sender, "receiver": receiver, "latency_seconds": latency,
                          "bytes_per_second": SIZE / max(min(transfers) - 2 * latency, 1e-9)})
        elif rank == receiver:
            for what in (*[small] * PINGS, *[large] * TRIES):
                dist.recv(what, sender)
                dist.send(small, sender)
    every: list[Any] = [None] * world
    dist.all_gather_object(every, found)
    if rank == 0:
        Path(folder, FILE).write_text(json.dumps([link for links in every for link in links]))
    dist.destroy_process_group()


def _exchange(dist: Any, content: Any, answer: Any, other: int) -> float:
    """Send `content`, wait for an answer and return the seconds."""
    begin = time.perf_counter()
    dist.send(content, other)
    dist.recv(answer, other)
    return time.perf_counter() - begin
