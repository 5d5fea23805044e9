"""An algorithm as data: which rank sends which elements to which rank in which round. Uses neither torch nor sockets.

A schedule lists the transfers of the whole group, so every message has a receiver by construction, and bytes, rounds
and modelled time are computed from the schedule that runs. In one round every rank sends what it had before that round
(bulk-synchronous); the executor overlaps rounds if the data allow it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple


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


class Busiest(NamedTuple):
    """Most bytes that one rank sends, and most that one rank receives."""

    sent: int
    received: int


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


def busiest(transfers: Iterable[Transfer], world: int, itemsize: int) -> Busiest:
    """Return the most bytes that one rank sends, and the most that one rank receives."""
    sent, received = [0] * world, [0] * world
    for transfer in transfers:
        size = (transfer.stop - transfer.start) * itemsize
        sent[transfer.source] += size
        received[transfer.target] += size
    return Busiest(max(sent), max(received))


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


def cost_by_class(transfers: Iterable[Transfer], node_of_rank: Sequence[int], itemsize: int
                  ) -> tuple[ScheduleCost, ScheduleCost]:
    """Compute rounds and path of a schedule by class of link: (between nodes, within one).

    A round with a message between nodes counts there: the ranks of a node share its link. A round without one counts
    within. Reduced bytes are left at zero.
    """
    between: dict[int, dict[tuple[str, int], int]] = {}
    within: dict[int, dict[tuple[str, int], int]] = {}
    for item in nonempty(transfers):
        size, source, target = (item.stop - item.start) * itemsize, node_of_rank[item.source], node_of_rank[item.target]
        flow = (within if source == target else between).setdefault(item.round, {})
        ends = (item.source, item.target) if source == target else (source, target)
        for key in zip(("sends", "receives"), ends, strict=True):
            flow[key] = flow.get(key, 0) + size
    for number in between:
        within.pop(number, None)
    return tuple(  # type: ignore[return-value]  # two of them
        ScheduleCost(len(flows), sum(max(flow.values()) for flow in flows.values()), 0) for flows in (between, within))
