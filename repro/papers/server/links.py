"""Messages between workers and shards: gloo's point-to-point operations, and memory inside one process.

A group of their own keeps them apart from the collectives of the default group. Each direction has its tag, and gloo
keeps the order of messages with one tag between two ranks, so that threads which serve different workers never wait
for one another.
"""

from __future__ import annotations

from datetime import timedelta
from queue import Queue
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

PUSH, REPLY, SNAPSHOT, PART = 101, 102, 103, 104
"""Tags: worker to shard, shard to worker, request for a snapshot, its part."""
HEADER = 6
"""Numbers (int64) in front of every message."""


def own_part(store: Any) -> Store:
    """Return the part of a launch's store in which workers and servers meet, outside of any process group's."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return PrefixStore("async-server", store)


class LinkLost(Exception):
    """The rank at the other end has gone."""

    def __init__(self, peer: int, why: BaseException) -> None:
        super().__init__(f"link to rank {peer}: {str(why).strip().splitlines()[0][:200]}")
        self.peer = peer


class Links:
    """All messages of one rank; any number of threads, each with its own (peer, tag).

    Args:
        ranks: workers and servers.
        store: of the launch; None for a single rank.
    """

    def __init__(self, rank: int, ranks: int, timeout_seconds: float, store: Store | None) -> None:
        self.rank = rank
        self._local: dict[int, Queue[torch.Tensor]] = {tag: Queue() for tag in (PUSH, REPLY, SNAPSHOT, PART)}
        self._inner: Any = None
        if store is not None:
            self._inner = dist.ProcessGroupGloo(PrefixStore("links", store), rank, ranks,
                                                timedelta(seconds=timeout_seconds))

    @property
    def shared(self) -> bool:
        """There are other ranks."""
        return self._inner is not None

    def send(self, tensor: torch.Tensor, peer: int, tag: int) -> int:
        """Send a tensor and wait until its memory may be used again; return the bytes on the wire (0 inside a process).

        Raises:
            LinkLost: the rank at the other end has gone.
        """
        if peer == self.rank:
            self._local[tag].put(tensor.clone())
            return 0
        try:
            self._inner.send([tensor], peer, tag).wait()
        except RuntimeError as error:
            raise LinkLost(peer, error) from error
        return tensor.nbytes

    def receive(self, tensor: torch.Tensor, peer: int, tag: int) -> int:
        """Fill a tensor with the next message; return the bytes on the wire.

        Raises:
            LinkLost: the rank at the other end has gone.
        """
        if peer == self.rank:
            tensor.copy_(self._local[tag].get())
            return 0
        try:
            self._inner.recv([tensor], peer, tag).wait()
        except RuntimeError as error:
            raise LinkLost(peer, error) from error
        return tensor.nbytes

    def close(self) -> None:
        self._inner = None


def header(*values: int) -> torch.Tensor:
    """Return a header; missing numbers are 0."""
    return torch.tensor([*values, *[0] * (HEADER - len(values))], dtype=torch.int64)


def bits(value: float) -> int:
    """Return a number as the bits that a header carries."""
    return int(torch.tensor(value, dtype=torch.float64).view(torch.int64))


def number(value: int) -> float:
    """Return the number of `bits`."""
    return float(torch.tensor(value, dtype=torch.int64).view(torch.float64))
