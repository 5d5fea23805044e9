"""What a schedule runs on: non-blocking point-to-point messages between the ranks of one group."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from threading import Event, Lock
from typing import Any, NamedTuple, Protocol

import torch

TAG = 1 << 24
"""Set apart from the tags that engines use for their own sends on the same group."""


class Pending(Protocol):
    """A message on its way."""

    def wait(self) -> Any:
        """Block until the buffer may be used again; raises where the link broke or the time ran out."""


class Message(NamedTuple):
    """One end of a message."""

    tensor: torch.Tensor
    peer: int
    sends: bool


class Wire(ABC):
    """Links from one rank to all others; between two ranks, messages arrive in the order in which they were sent."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self.sent = self.received = 0
        """Bytes handed over so far, counted message by message."""
        self._scratch: dict[torch.device, torch.Tensor] = {}

    def send(self, tensor: torch.Tensor, peer: int) -> Pending:
        self.sent += tensor.nbytes
        return self._send(tensor, peer)

    def recv(self, tensor: torch.Tensor, peer: int) -> Pending:
        self.received += tensor.nbytes
        return self._recv(tensor, peer)

    @abstractmethod
    def _send(self, tensor: torch.Tensor, peer: int) -> Pending: ...

    @abstractmethod
    def _recv(self, tensor: torch.Tensor, peer: int) -> Pending: ...

    def exchange(self, messages: Sequence[Message]) -> None:
        """Start all messages of a round together and wait for them."""
        self.settle([self.send(item.tensor, item.peer) if item.sends else self.recv(item.tensor, item.peer)
                     for item in messages])

    def settle(self, pending: Sequence[Pending]) -> None:
        """Wait for messages that are on their way."""
        for item in pending:
            item.wait()

    def broken(self) -> list[int]:
        """The ranks to which the link is known to be broken; none where the wire cannot tell."""
        return []

    @abstractmethod
    def close(self) -> None:
        """Break all links, so that ranks that wait for this one wake up with an error."""

    def scratch(self, elements: int, like: torch.Tensor) -> torch.Tensor:
        """A buffer of `elements`, kept from call to call; only one collective uses a wire at a time."""
        size = elements * like.element_size()
        kept = self._scratch.get(like.device)
        if kept is None or kept.numel() < size:
            kept = self._scratch[like.device] = torch.empty(size, dtype=torch.uint8, device=like.device)
        return kept[:size].view(like.dtype)


class GroupWire(Wire):
    """The point-to-point operations of a gloo group."""

    def __init__(self, inner: Any, rank: int, world: int) -> None:
        super().__init__(rank, world)
        self.inner = inner
        self._probes: list[Any] = []

    def _send(self, tensor: torch.Tensor, peer: int) -> Pending:
        work: Pending = self.inner.send([tensor], peer, TAG)
        return work

    def _recv(self, tensor: torch.Tensor, peer: int) -> Pending:
        work: Pending = self.inner.recv([tensor], peer, TAG)
        return work

    def broken(self) -> list[int]:
        # gloo refuses a message over a broken link at once. What it takes stays unanswered until `close`.
        found = []
        for peer in (peer for peer in range(self.world) if peer != self.rank):
            try:
                self._probes.append(self.inner.recv([torch.empty(1)], peer, TAG + 1))
            except RuntimeError:
                found.append(peer)
        return found

    def close(self) -> None:
        # gloo has no call for it, but a wait that times out closes all links of its group. Over a link that is broken
        # already nothing is waited for: then the next one.
        for hop in range(1, self.world):
            try:
                work = self.inner.recv([torch.empty(1)], (self.rank + hop) % self.world, TAG + 1)
            except RuntimeError:
                continue
            with suppress(RuntimeError):
                work.wait(timedelta(milliseconds=1))
            return


class _Side:
    """One side of a message in memory."""

    def __init__(self, tensor: torch.Tensor, timeout: float) -> None:
        self.tensor, self.timeout, self.event = tensor, timeout, Event()

    def wait(self) -> None:
        if not self.event.wait(self.timeout):
            raise TimeoutError("nobody on the other side")


class MemoryWire(Wire):
    """Ranks as threads of one process, for tests: as strict as gloo, nothing moves before both sides are there."""

    def __init__(self, rank: int, net: MemoryNet) -> None:
        super().__init__(rank, net.world)
        self.net = net

    def _send(self, tensor: torch.Tensor, peer: int) -> Pending:
        return self.net.meet(self.rank, peer, tensor, sends=True)

    def _recv(self, tensor: torch.Tensor, peer: int) -> Pending:
        return self.net.meet(peer, self.rank, tensor, sends=False)

    def close(self) -> None:
        """Threads of one process have no links to break."""


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
                raise ValueError(f"{source} sends {given.tensor.numel()} elements, {target} wants "
                                 f"{taken.tensor.numel()}")
            taken.tensor.copy_(given.tensor)
        mine.event.set()
        other.event.set()
        return mine

    def idle(self) -> bool:
        """Whether every message found its other side."""
        return not any(self.waiting.values())
