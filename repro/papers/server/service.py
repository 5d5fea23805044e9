"""The threads that serve one shard: one for each worker."""

from __future__ import annotations

import threading
from typing import Any

import torch

from repro.papers.server.counts import Counts
from repro.papers.server.links import PUSH, REPLY, LinkLost, Links, header, number
from repro.papers.server.shard import Lost, Push, Shard

LEAVE, FIRST, GRADIENT, RATED, FAIL = range(5)
"""Kinds of a worker's message: it ends, it asks for its first ticket, a gradient, one with a learning rate, it fails.
"""


class Service:
    """Serves a shard to all workers until each has left.

    Args:
        may_lose: the run goes on without a worker that has gone.
    """

    def __init__(self, shard: Shard, links: Links, counts: Counts, may_lose: bool) -> None:
        self.shard, self.links, self.counts, self.may_lose = shard, links, counts, may_lose
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
            self.shard.lose(worker, self.may_lose)
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

