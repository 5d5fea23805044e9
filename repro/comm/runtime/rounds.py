"""Run a schedule over NCCL: all messages of a round in one NCCL group, then the reductions, ordered by the stream.

NCCL's sends and receives block their stream until the other side is there. In one group they progress together, and
both ends of a message are in the same round, so every group finds its counterpart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import torch

from repro.comm.runtime.program import LinkBroken, Reduce
from repro.comm.runtime.wire import Message, Pending, Wire
from repro.comm.schedule import Transfer

Rounds = tuple[tuple[Transfer, ...], ...]


class NcclWire(Wire):
    """Wire over the point-to-point operations of an NCCL group."""

    def __init__(self, inner: Any, rank: int, world: int, device: torch.device) -> None:
        super().__init__(rank, world)
        self.inner, self.device = inner, device

    def exchange(self, messages: Sequence[Message]) -> None:
        self.inner._start_coalescing(self.device)
        super().exchange(messages)
        self.inner._end_coalescing(self.device).wait()

    def _send(self, tensor: torch.Tensor, peer: int) -> Pending:
        work: Pending = self.inner.send([tensor], peer, 0)
        return work

    def _recv(self, tensor: torch.Tensor, peer: int) -> Pending:
        work: Pending = self.inner.recv([tensor], peer, 0)
        return work

    def wait_all(self, pending: Sequence[Pending]) -> None:
        """Do nothing: the stream waits for the whole group."""

    def close(self) -> None:
        """Do nothing: NCCL's watchdog ends operations that wait for a lost rank."""


def own_rounds(transfers: Iterable[Transfer], rank: int) -> Rounds:
    """Return the transfers of `rank`, grouped by round."""
    mine = [item for item in transfers if rank in (item.source, item.target) and item.start < item.stop]
    mine.sort(key=lambda item: item.round)
    return tuple(tuple(group) for _, group in groupby(mine, key=lambda item: item.round))


def execute_rounds(rounds: Rounds, flat: torch.Tensor, wire: Wire, reduce: Reduce) -> None:
    """Run one rank's part of a collective.

    Raises:
        LinkBroken: the messages of a round failed; names one of the other ends.
    """
    for items in rounds:
        room = wire.scratch(sum(item.stop - item.start for item in items if _adds(item, wire.rank)), flat)
        messages: list[Message] = []
        adds: list[tuple[torch.Tensor, torch.Tensor]] = []
        for item in items:
            place, sends = flat[item.start:item.stop], item.source == wire.rank
            if _adds(item, wire.rank):
                received, room = room[:place.numel()], room[place.numel():]
                adds.append((place, received))
            messages.append(Message(received if _adds(item, wire.rank) else place,
                                    item.target if sends else item.source, sends))
        try:
            wire.exchange(messages)
        except (RuntimeError, TimeoutError) as error:
            raise LinkBroken(messages[0].peer, error) from error
        for place, received in adds:
            reduce(place, received)


def _adds(item: Transfer, rank: int) -> bool:
    return item.adds and item.target == rank
