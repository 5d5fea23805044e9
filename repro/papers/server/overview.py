"""What rank 0 asks the shards for while workers train: updates, snapshots, a report; and a shard's thread that answers.

Requests have a tag of their own and one asker, so no worker waits for them. Rank 0 reaches a shard in its own process
by the same messages, through memory.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from repro.core.errors import TrialError
from repro.papers.server.rules import Update
from repro.papers.server.service import PART, SNAPSHOT, LinkLost, Links, Service, header

COPY, UPDATES, STOP, REPORT, END = range(5)
"""Kinds of a request: weights at a version, updates between two versions, deal no more, sums of the run, the last."""
FAILED = -1
"""In place of a length: the shard cannot answer; the reason follows."""


class Attendant(threading.Thread):
    """Answers rank 0 for one shard until it sends `END`.

    Args:
        apart: the shard is in a process of its own, whose traffic is then the shard's.
    """

    def __init__(self, service: Service, apart: bool = False) -> None:
        super().__init__(name="repro-attendant", daemon=True)
        self.service, self.shard, self.links, self.apart = service, service.shard, service.links, apart
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while self._answer():
                pass
        except BaseException as error:
            self.failure = error  # raised by `end`

    def end(self) -> None:
        """Wait for `END`.

        Raises:
            LinkLost: rank 0 has gone.
        """
        self.join()
        if self.failure is not None:
            raise self.failure

    def _answer(self) -> bool:
        request: Any = header()
        self.links.receive(request, 0, SNAPSHOT)
        kind, first, stop = (int(value) for value in request[:3])
        if kind == END:
            return False
        try:
            found = self._find(kind, first, stop)
        except Exception as error:  # the shard has failed: rank 0 gets the reason
            found = torch.frombuffer(bytearray((str(error) or type(error).__name__).encode()), dtype=torch.uint8)
            self.links.send(header(FAILED, found.numel()), 0, PART)
        else:
            self.links.send(header(found.numel()), 0, PART)
        self.links.send(found, 0, PART)
        return True

    def _find(self, kind: int, first: int, stop: int) -> torch.Tensor:
        if kind == COPY:
            return self.shard.snapshot(first)
        if kind == UPDATES:
            self.shard.reach(stop)
            return _packed(self.shard.updates[first:stop])
        if kind == STOP:
            self.shard.stop()
            return _packed([])
        if not self.shard.rules.lockstep:
            self.service.join()  # all workers have left: nothing changes any more
        return _packed(self._report())

    def _report(self) -> dict[str, Any]:
        shard = self.shard
        by_worker = {worker: [update.applied - update.read for update in shard.updates if update.worker == worker]
                     for worker in range(0, shard.rules.workers, shard.rules.group)}
        return {
            "updates": shard.version, "lost": shard.lost,
            "lag": Counter(update.applied - update.read for update in shard.updates).most_common(),
            "ahead": Counter(update.ahead for update in shard.updates).most_common(),
            "by_group": [{"updates": len(own), "mean_lag": sum(own) / len(own) if own else None}
                         for own in by_worker.values()],
            "own_traffic": self.service.counts.sums() if self.apart else None,
        }


def _packed(value: Any) -> torch.Tensor:
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


class Overview:
    """Rank 0's side.

    Args:
        homes: rank of each shard.
    """

    def __init__(self, links: Links, homes: Sequence[int]) -> None:
        self.links, self.homes = links, homes

    def updates(self, first: int, stop: int) -> list[Update]:
        """Wait until the first shard has applied `stop` updates; return those from `first` on."""
        return [Update(*item) for item in self._json(0, UPDATES, first, stop)]

    def copies(self, version: int) -> list[torch.Tensor]:
        """Return the weights of every shard after `version` updates, flat."""
        return [self._ask(shard, torch.float32, COPY, version) for shard in range(len(self.homes))]

    def stop(self) -> None:
        """Make the first shard deal no further work."""
        self._json(0, STOP)

    def reports(self) -> list[dict[str, Any]]:
        """Return the sums of every shard; outside of lock step after all workers have left."""
        return [self._json(shard, REPORT) for shard in range(len(self.homes))]

    def end(self) -> None:
        """End every shard's attendant."""
        for shard, home in enumerate(self.homes):
            with naming_shard(shard):
                self.links.send(header(END), home, SNAPSHOT)

    def _json(self, shard: int, *request: int) -> Any:
        return json.loads(self._ask(shard, torch.uint8, *request).numpy().tobytes())

    def _ask(self, shard: int, dtype: torch.dtype, *request: int) -> torch.Tensor:
        home, answer = self.homes[shard], header()
        with naming_shard(shard):
            self.links.send(header(*request), home, SNAPSHOT)
            self.links.receive(answer, home, PART)
            length, failed = int(answer[0]), int(answer[0]) == FAILED
            found = torch.empty(int(answer[1]) if failed else length, dtype=torch.uint8 if failed else dtype)
            self.links.receive(found, home, PART)
        if failed:
            raise TrialError(f"shard {shard} on rank {home}: {found.numpy().tobytes().decode()}")
        return found


@contextmanager
def naming_shard(shard: int) -> Iterator[None]:
    """Name the shard whose link is lost.

    Raises:
        TrialError: it is lost.
    """
    try:
        yield
    except LinkLost as error:
        raise TrialError(f"shard {shard} on rank {error.peer} has gone: {error}") from error
