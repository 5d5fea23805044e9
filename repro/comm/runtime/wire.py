"""Links under a schedule: non-blocking messages between the ranks of one group, and who is missing if one breaks."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from repro.core.errors import TrialError
from repro.core.machine import is_out_of_memory

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


class Wire:
    """Links from one rank to all others, by the point-to-point operations of a gloo group; between two ranks, messages
    arrive in the order in which they were sent.
    """

    tag: ClassVar[int] = TAG

    def __init__(self, inner: Any, rank: int, world: int) -> None:
        self.inner, self.rank, self.world = inner, rank, world
        self.sent = self.received = 0
        """Bytes submitted so far, counted per message."""
        self._scratch: dict[torch.device, torch.Tensor] = {}
        self._probes: list[Any] = []

    def send(self, tensor: torch.Tensor, peer: int) -> Pending:
        self.sent += tensor.nbytes
        work: Pending = self.inner.send([tensor], peer, self.tag)
        return work

    def recv(self, tensor: torch.Tensor, peer: int) -> Pending:
        self.received += tensor.nbytes
        work: Pending = self.inner.recv([tensor], peer, self.tag)
        return work

    def start(self, messages: Sequence[Message]) -> list[Pending]:
        return [self.send(item.tensor, item.peer) if item.sends else self.recv(item.tensor, item.peer)
                for item in messages]

    def exchange(self, messages: Sequence[Message]) -> None:
        """Start all messages of a round together and wait for them."""
        for item in self.start(messages):
            item.wait()

    def broken(self) -> list[int]:
        """Return the ranks whose links are known to be broken; empty if the wire cannot tell."""
        # gloo refuses a message over a broken link at once. An accepted one stays unanswered until `close`.
        found = []
        for peer in (peer for peer in range(self.world) if peer != self.rank):
            try:
                self._probes.append(self.inner.recv([torch.empty(1)], peer, TAG + 1))
            except RuntimeError:
                found.append(peer)
        return found

    def close(self) -> None:
        """Break all links, so that ranks that wait for this one wake up with an error."""
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

    def scratch(self, elements: int, like: torch.Tensor) -> torch.Tensor:
        """Return a buffer of `elements`, reused between calls; only one collective uses a wire at a time."""
        size = elements * like.element_size()
        kept = self._scratch.get(like.device)
        if kept is None or kept.numel() < size:
            kept = self._scratch[like.device] = torch.empty(size, dtype=torch.uint8, device=like.device)
        return kept[:size].view(like.dtype)


class NcclWire(Wire):
    """Wire over the point-to-point operations of an NCCL group."""

    tag = 0

    def __init__(self, inner: Any, rank: int, world: int, device: torch.device) -> None:
        super().__init__(inner, rank, world)
        self.device = device

    def exchange(self, messages: Sequence[Message]) -> None:
        self.inner._start_coalescing(self.device)
        self.start(messages)
        self.inner._end_coalescing(self.device).wait()  # the stream waits for the whole group

    def broken(self) -> list[int]:
        return []

    def close(self) -> None:
        """Do nothing: NCCL's watchdog ends operations that wait for a lost rank."""


class LinkBroken(Exception):
    """The link to `peer` failed or timed out."""

    def __init__(self, peer: int, cause: BaseException) -> None:
        super().__init__(f"link to rank {peer}: {cause}")
        self.peer, self.cause = peer, cause


KEY = "lost"
SIGNING_SECONDS = 0.3
"""Time in which a live rank that has closed its links signs."""


class MissingRankFinder:
    """Turn a broken link into a `TrialError` that names the rank.

    1. The first rank whose link breaks writes the other end's number into the store: that rank is gone.
    2. It closes all its own links, so that ranks that wait for it wake up, find the number in the store and do the
       same.
    3. Rank 0, whose end may end the store, stays until all others have read it.
    4. A timeout does not name a rank: all ranks that time out sign in the store, and those that have not signed within
       a grace period are named.
    5. An error of the inner group's own collective does not name the link: the wire lists its broken links. A rank that
       has signed, or signs at once, closed its links because of another rank and is not the missing one.
    """

    def __init__(self, store: Store, wire: Wire, timeout_seconds: float) -> None:
        self.store, self.wire = store, wire
        self.rank, self.world = wire.rank, wire.world
        self.grace = min(5.0, max(1.0, timeout_seconds / 4))

    @contextmanager
    def naming_missing_rank(self) -> Iterator[None]:
        """Turn errors of links inside the block into errors that name the missing rank; but memory that ran out here is
        no link.
        """
        try:
            yield
        except LinkBroken as error:
            if is_out_of_memory(error.cause):
                raise error.cause from None
            raise self._error(error.peer, str(error.cause)) from error
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            # The inner group's own collective does not name the link.
            raise self._error(None, str(error)) from error

    def _error(self, peer: int | None, cause: str) -> TrialError:
        try:
            gone = self._find_gone(peer, timed_out="imed out" in cause or "imeout" in cause)
            # 2. wake those that wait for this rank
            self.wire.close()
            # 3. rank 0 stays
            self._sign("read")
            if self.rank == 0:
                self._unsigned("read", gone, self.grace)
        except (RuntimeError, dist.DistError):
            # The store lives with rank 0 or its launcher.
            gone = [0]
            self.wire.close()
        return TrialError(self._describe(gone, peer, cause))

    def _describe(self, gone: list[int], peer: int | None, cause: str) -> str:
        cause = re.sub(r"^\[[^\]]*\] *", "", cause.splitlines()[0] if cause else "no reason given")
        cause = cause.partition(". This is typically")[0]
        if not gone:
            waited = "" if peer is None else f", rank {self.rank} waited for rank {peer}"
            return f"communication stopped although every rank is still running{waited}: {cause}"
        return f"rank {' and '.join(map(str, gone))} {'is' if len(gone) == 1 else 'are'} gone: {cause}"

    def _find_gone(self, peer: int | None, timed_out: bool) -> list[int]:
        if self.store.check([KEY]):
            return self._known()
        # 5. broken links, and the silent ranks among them
        broken = [] if timed_out else self.wire.broken() if peer is None else [peer]
        silent = self._unsigned("here", set(range(self.world)) - set(broken), SIGNING_SECONDS)
        if silent:
            # 1. this rank is the first to find it
            self.store.set_timeout(timedelta(seconds=self.grace))
            self.store.compare_set(KEY, "", ",".join(map(str, silent)))
            return self._known()
        # 4. roll call
        self._sign("here")
        missing = self._unsigned("here", [], self.grace)
        return self._known() if self.store.check([KEY]) else missing

    def _known(self) -> list[int]:
        return [int(rank) for rank in self.store.get(KEY).decode().split(",")]

    def _sign(self, sheet: str) -> None:
        self.store.set(f"{sheet}{self.rank}", "1")

    def _unsigned(self, sheet: str, excused: Iterable[int], seconds: float) -> list[int]:
        """Return the ranks that have not signed within `seconds`; empty as soon as all have."""
        deadline = time.monotonic() + seconds
        missing = [rank for rank in range(self.world) if rank not in excused]
        while missing and time.monotonic() < deadline:
            missing = [rank for rank in missing if not self.store.check([f"{sheet}{rank}"])]
            if sheet == "here" and self.store.check([KEY]):
                return []
            time.sleep(0.02)
        return missing
