"""An algorithm as data: which rank sends which elements to which rank in which round. Uses neither torch nor sockets.

A schedule lists the transfers of the whole group, so every message has a receiver by construction, and bytes, rounds
and modelled time are computed from the schedule that runs. In one round every rank sends what it had before that round
(bulk-synchronous); the executor overlaps rounds if the data allow it. `Collectives` is what an algorithm gives.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from repro.seams.training import Comm


class Transfer(NamedTuple):
    """One message: elements [start, stop) of the buffer, from one rank to another."""

    round: int
    source: int
    target: int
    start: int
    stop: int
    adds: bool
    """True: the target reduces them into its own elements; False: they replace them."""


class Span(NamedTuple):
    """Elements [start, stop)."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class ScheduleCost:
    """Load of a schedule on the links when all ranks run in step."""

    rounds: int
    """Rounds with at least one message; each costs one latency."""
    path_bytes: int
    """Sum over rounds of the most that one rank sends or receives; divided by the link's rate it is a time."""
    reduced_bytes: int
    """Sum over rounds of the most that one rank reduces."""

    def seconds(self, alpha: float, beta: float, gamma: float = 0.0) -> float:
        """Return alpha x rounds + beta x path + gamma x reduced (Thakur, Rabenseifner and Gropp, 2005, section 3)."""
        return alpha * self.rounds + beta * self.path_bytes + gamma * self.reduced_bytes


def cut(count: int, parts: int, start: int = 0) -> list[Span]:
    """Cut `count` elements from `start` on into `parts` spans whose sizes differ by at most one, larger ones first."""
    size, rest = divmod(count, parts)
    spans = []
    for part in range(parts):
        stop = start + size + (part < rest)
        spans.append(Span(start, stop))
        start = stop
    return spans


def chunks(span: Span, size: int | None) -> list[Span]:
    """Cut `span` into pieces of `size` elements, the last one smaller; into one piece if `size` is None."""
    if size is None:
        return [span]
    return [Span(at, min(at + size, span.stop)) for at in range(span.start, span.stop, size)]


def nonempty(transfers: Iterable[Transfer]) -> Iterator[Transfer]:
    """Return the transfers that carry at least one element."""
    return (transfer for transfer in transfers if transfer.start < transfer.stop)


def bytes_by_rank(transfers: Iterable[Transfer], world: int, itemsize: int) -> tuple[list[int], list[int]]:
    """Return the bytes that every rank sends, and those that it receives."""
    sent, received = [0] * world, [0] * world
    for transfer in transfers:
        size = (transfer.stop - transfer.start) * itemsize
        sent[transfer.source] += size
        received[transfer.target] += size
    return sent, received


def cost(transfers: Iterable[Transfer], itemsize: int) -> ScheduleCost:
    """Compute rounds, path and reduction of a schedule."""
    flows: dict[int, dict[tuple[str, int], int]] = {}
    for transfer in nonempty(transfers):
        size = (transfer.stop - transfer.start) * itemsize
        flow = flows.setdefault(transfer.round, {})
        keys = [("sends", transfer.source), ("receives", transfer.target)]
        for key in [*keys, ("adds", transfer.target)] if transfer.adds else keys:
            flow[key] = flow.get(key, 0) + size
    path = sum(max(flow.values()) for flow in flows.values())
    added = sum(max((size for (what, _), size in flow.items() if what == "adds"), default=0) for flow in flows.values())
    return ScheduleCost(len(flows), path, added)


Operation = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast"]
OPERATIONS: tuple[Operation, ...] = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")


class Collectives(Comm):
    """The schedules of an algorithm: `own` names its collectives, one method each gives the schedule.

    All other collectives pass through to the inner group (gloo or NCCL).
    """

    title: ClassVar[str]
    own: ClassVar[tuple[Operation, ...]]

    # ---- schedules

    @abstractmethod
    def all_reduce(self, world: int, count: int, itemsize: int) -> Iterable[Transfer]:
        """Reduce the `count` elements of every rank; every rank ends with the result."""

    def all_gather(self, world: int, count: int, itemsize: int) -> Iterable[Transfer]:
        """Gather `count` elements on every rank; rank r starts with `cut(count, world)[r]`."""
        raise NotImplementedError

    def reduce_scatter(self, world: int, count: int, itemsize: int) -> Iterable[Transfer]:
        """Reduce `count` elements; rank r ends with `cut(count, world)[r]`, the rest of its buffer is scratch."""
        raise NotImplementedError

    def broadcast(self, world: int, count: int, itemsize: int, root: int) -> Iterable[Transfer]:
        """Copy the root's `count` elements to every rank."""
        raise NotImplementedError

    def runs(self, operation: Operation, world: int) -> bool:
        """Return True if the algorithm has a schedule for this collective on `world` ranks."""
        return operation in self.own

    def delegates(self, world: int, size: int, itemsize: int) -> bool:
        """Return True if the inner group is expected to be faster for an all-reduce of `size` bytes."""
        return False

    def passes_through(self, world: int) -> list[str]:
        """Return the collectives that the inner group runs, by the names that the plan shows."""
        return [operation for operation in OPERATIONS if not self.runs(operation, world)]

    # ---- formulas, computed from the schedules

    def load(
        self, operation: Operation, world: int, count: int, itemsize: int
    ) -> tuple[list[int], list[int], ScheduleCost]:
        """Return (bytes sent by rank, bytes received by rank, cost) of one collective on `count` elements of the whole
        buffer (broadcast: from rank 0).
        """
        root = (0,) if operation == "broadcast" else ()
        transfers = list(getattr(self, operation)(world, count, itemsize, *root))
        return *bytes_by_rank(transfers, world, itemsize), cost(transfers, itemsize)

    def cost(self, world: int, count: int, itemsize: int) -> ScheduleCost:
        """Return rounds, path and reduction of an all-reduce."""
        return cost(self.all_reduce(world, count, itemsize), itemsize)

    def sent(self, operation: str, world: int, count: int, itemsize: int) -> tuple[int, int, int] | None:
        if operation not in ("all_reduce", "all_gather") or not self.runs(operation, world):  # type: ignore[arg-type]
            return None
        sent, _, found = self.load(operation, world, count, itemsize)  # type: ignore[arg-type]
        return max(sent), found.rounds, found.path_bytes


def per_chunk(chunk_kib: float | None, itemsize: int) -> int | None:
    """Return the elements of one chunk, at least one; None if there are no chunks."""
    return None if chunk_kib is None else max(1, int(chunk_kib * 1024) // itemsize)
