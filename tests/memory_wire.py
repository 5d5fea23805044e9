"""Wire between threads of one process, for tests."""

from __future__ import annotations

from collections import deque
from threading import Event, Lock

import torch

from repro.comm.runtime.wire import Pending, Wire


class _Side:
    """One side of a message in memory."""

    def __init__(self, tensor: torch.Tensor, timeout: float) -> None:
        self.tensor, self.timeout, self.event = tensor, timeout, Event()

    def wait(self) -> None:
        if not self.event.wait(self.timeout):
            raise TimeoutError("no counterpart on the other side")


class _Links:
    """The links of one rank, called as a gloo group is; as strict as gloo: data move only when both sides are there."""

    def __init__(self, rank: int, net: MemoryNet) -> None:
        self.rank, self.net = rank, net

    def send(self, tensors: list[torch.Tensor], peer: int, tag: int) -> Pending:
        return self.net.meet(self.rank, peer, tensors[0], sends=True)

    def recv(self, tensors: list[torch.Tensor], peer: int, tag: int) -> Pending:
        return self.net.meet(peer, self.rank, tensors[0], sends=False)


class MemoryWire(Wire):
    """Wire of one thread."""

    def __init__(self, rank: int, net: MemoryNet) -> None:
        super().__init__(_Links(rank, net), rank, net.world)


class MemoryNet:
    """All links between `world` threads."""

    def __init__(self, world: int, timeout: float = 10.0) -> None:
        self.world, self.timeout, self.lock = world, timeout, Lock()
        self.waiting: dict[tuple[int, int, bool], deque[_Side]] = {}

    def meet(self, source: int, target: int, tensor: torch.Tensor, sends: bool) -> _Side:
        """Match a send with the oldest receive of the same link, or wait for one."""
        mine = _Side(tensor, self.timeout)
        with self.lock:
            others = self.waiting.setdefault((source, target, not sends), deque())
            if not others:
                self.waiting.setdefault((source, target, sends), deque()).append(mine)
                return mine
            other = others.popleft()
            taken, given = (other, mine) if sends else (mine, other)
            if taken.tensor.numel() != given.tensor.numel():
                raise ValueError(f"{source} sends {given.tensor.numel()} elements, {target} expects "
                                 f"{taken.tensor.numel()}")
            taken.tensor.copy_(given.tensor)
        mine.event.set()
        other.event.set()
        return mine

    def idle(self) -> bool:
        """Return True if every message found its other side."""
        return not any(self.waiting.values())
