"""Links under a schedule: non-blocking point-to-point messages between the ranks of one group."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

import torch

TAG = 1 << 24
"""Differs from the tags that engines use for their own sends on the same group."""


class Pending(Protocol):
    """A message under way."""

    def wait(self) -> Any:
        """Block until the buffer may be used again; raise if the link broke or the time ran out."""


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
        """Bytes submitted so far, counted per message."""
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
        self.wait_all([self.send(item.tensor, item.peer) if item.sends else self.recv(item.tensor, item.peer)
                       for item in messages])

    def wait_all(self, pending: Sequence[Pending]) -> None:
        """Wait for messages under way."""
        for item in pending:
            item.wait()

    def broken(self) -> list[int]:
        """Return the ranks whose links are known to be broken; empty if the wire cannot tell."""
        return []

    @abstractmethod
    def close(self) -> None:
        """Break all links, so that ranks that wait for this one wake up with an error."""

    def scratch(self, elements: int, like: torch.Tensor) -> torch.Tensor:
        """Return a buffer of `elements`, reused between calls; only one collective uses a wire at a time."""
        size = elements * like.element_size()
        kept = self._scratch.get(like.device)
        if kept is None or kept.numel() < size:
            kept = self._scratch[like.device] = torch.empty(size, dtype=torch.uint8, device=like.device)
        return kept[:size].view(like.dtype)


class GroupWire(Wire):
    """Wire over the point-to-point operations of a gloo group."""

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
        # gloo refuses a message over a broken link at once. An accepted one stays unanswered until `close`.
        found = []
        for peer in (peer for peer in range(self.world) if peer != self.rank):
            try:
                self._probes.append(self.inner.recv([torch.empty(1)], peer, TAG + 1))
            except RuntimeError:
                found.append(peer)
        return found

    def close(self) -> None:
        # gloo has no call for this, but a wait that times out closes all links of its group. Over a broken link there
        # is nothing to wait for: use the next one.
        for hop in range(1, self.world):
            try:
                work = self.inner.recv([torch.empty(1)], (self.rank + hop) % self.world, TAG + 1)
            except RuntimeError:
                continue
            with suppress(RuntimeError):
                work.wait(timedelta(milliseconds=1))
            return
