"""The threads that serve one shard, one for each worker, with their links and counts."""

from __future__ import annotations

import threading
from datetime import timedelta
from queue import Queue
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from repro.papers.server.shard import Lost, Push, Shard

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


class Counts:
    """Bytes by operation, and seconds of waiting; written by the worker's thread and those that serve."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: dict[str, dict[str, Any]] = {}
        self._waited = 0.0

    def count(self, operation: str, payload: int, sent: int, received: int) -> None:
        """Count one message of float32 weights or gradients; `sent` and `received` are bytes on the wire."""
        with self._lock:
            line = self._lines.setdefault(operation, {
                "operation": operation, "dtype": "float32", "collectives": 0, "payload_bytes": 0, "sent_bytes": 0,
                "received_bytes": 0})
            line["collectives"] += 1
            line["payload_bytes"] += payload
            line["sent_bytes"] += sent
            line["received_bytes"] += received

    def wait(self, seconds: float) -> None:
        """Count time in which the worker waited for messages."""
        with self._lock:
            self._waited += seconds

    def sums(self) -> dict[str, int]:
        """Return the bytes on the wire since the last `take`, of all operations."""
        with self._lock:
            return {key: sum(line[key] for line in self._lines.values()) for key in ("sent_bytes", "received_bytes")}

    def take(self) -> dict[str, Any]:
        """Return everything since the last call (JSON-like), and reset."""
        with self._lock:
            found = {"lines": [self._lines[key] for key in sorted(self._lines)], "busy_seconds": self._waited,
                     "exposed_seconds": self._waited, "overlapped_seconds": 0.0}
            self._lines, self._waited = {}, 0.0
        return found


LEAVE, FIRST, GRADIENT, RATED, FAIL = range(5)
"""Kinds of a worker's message: it ends, it asks for its first ticket, a gradient, one with a learning rate, it fails.
"""


class Service:
    """Serves a shard to all workers until each has left."""

    def __init__(self, shard: Shard, links: Links, counts: Counts) -> None:
        self.shard, self.links, self.counts = shard, links, counts
        self.threads = [threading.Thread(target=self._serve, args=(worker,), name=f"repro-shard-{worker}", daemon=True)
                        for worker in range(shard.rules.workers)]

    def start(self) -> None:
        for thread in self.threads:
            thread.start()

    def join(self) -> None:
        """Wait until every worker has left.

        Raises:
            Lost: one has gone without which the mode cannot go on.
        """
        for thread in self.threads:
            thread.join()
        if self.shard.failure is not None:
            raise self.shard.failure

    def _serve(self, worker: int) -> None:
        try:
            while self._answer(worker):
                pass
            self.shard.leave(worker)
        except LinkLost:
            self.shard.lose(worker)
        except BaseException as error:
            self.shard.fail(error)  # read by the threads that wait for the shard, and by `join`

    def _answer(self, worker: int) -> bool:
        """Answer one message; return False after the worker's last."""
        message: Any = header()
        self.links.receive(message, worker, PUSH)
        kind, read, loss, rate = (int(value) for value in message[:4])
        if kind == LEAVE:
            return False
        if kind == FAIL:
            raise Lost(f"worker {worker} has failed")
        if kind == FIRST:
            self.links.send(header(self.shard.first(worker)), worker, REPLY)
            return True
        gradient, out = torch.empty_like(self.shard.flat), torch.empty_like(self.shard.flat)
        received = self.links.receive(gradient, worker, PUSH)
        stated = number(rate) if kind == RATED else None
        ticket, version = self.shard.push(Push(worker, read, number(loss), stated, gradient), out)
        self.links.send(header(ticket, version), worker, REPLY)
        sent = self.links.send(out, worker, REPLY)
        self.counts.count("served", gradient.nbytes + out.nbytes, sent, received)
        return True
