"""An algorithm as data: who sends which elements to whom in which round. Pure; knows neither torch nor sockets.

A schedule lists transfers of the whole group, so every message has its receiver by construction, and bytes, rounds and
modelled time are read off the very thing that runs. In one round every rank sends what it had before that round
(bulk-synchronous meaning); the executor overlaps rounds wherever the data allow it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple


class Transfer(NamedTuple):
    """Elements [start, stop) of the buffer go from one rank to another."""

    round: int
    source: int
    target: int
    start: int
    stop: int
    adds: bool
    """True: the target reduces them into its own; False: they replace its own."""


class Span(NamedTuple):
    """Elements [start, stop)."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


class Busiest(NamedTuple):
    """What the busiest rank sends, and what the busiest one receives, bytes."""

    sent: int
    received: int


@dataclass(frozen=True, slots=True)
class Cost:
    """What a schedule asks of the links when all ranks keep step."""

    rounds: int
    """Rounds in which anything is sent: latencies paid."""
    path_bytes: int
    """Sum over rounds of the most that one rank sends or receives in it: what the link's rate divides."""
    reduced_bytes: int
    """Sum over rounds of the most that one rank reduces."""

    def seconds(self, alpha: float, beta: float, gamma: float = 0.0) -> float:
        """alpha x rounds + beta x path + gamma x reduced (Thakur, Rabenseifner and Gropp, 2005, section 3)."""
        return alpha * self.rounds + beta * self.path_bytes + gamma * self.reduced_bytes


def cut(count: int, parts: int, start: int = 0) -> list[Span]:
    """`count` elements from `start` on in `parts` spans whose sizes differ by at most one, larger ones first."""
    size, rest = divmod(count, parts)
    spans = []
    for part in range(parts):
        stop = start + size + (part < rest)
        spans.append(Span(start, stop))
        start = stop
    return spans


def chunks(span: Span, size: int | None) -> list[Span]:
    """`span` in pieces of `size` elements, the last one smaller; in one piece where `size` is None."""
    if size is None:
        return [span]
    return [Span(at, min(at + size, span.stop)) for at in range(span.start, span.stop, size)]


def filled(transfers: Iterable[Transfer]) -> Iterator[Transfer]:
    """The transfers that carry anything."""
    return (transfer for transfer in transfers if transfer.start < transfer.stop)


def busiest(transfers: Iterable[Transfer], world: int, itemsize: int) -> Busiest:
    """Most bytes sent, and received, by one rank."""
    sent, received = [0] * world, [0] * world
    for transfer in transfers:
        size = (transfer.stop - transfer.start) * itemsize
        sent[transfer.source] += size
        received[transfer.target] += size
    return Busiest(max(sent), max(received))


def cost(transfers: Iterable[Transfer], itemsize: int) -> Cost:
    """Rounds, path and reduction of a schedule."""
    flows: dict[int, dict[tuple[str, int], int]] = {}
    for transfer in filled(transfers):
        size = (transfer.stop - transfer.start) * itemsize
        flow = flows.setdefault(transfer.round, {})
        keys = [("sends", transfer.source), ("receives", transfer.target)]
        for key in [*keys, ("adds", transfer.target)] if transfer.adds else keys:
            flow[key] = flow.get(key, 0) + size
    path = sum(max(flow.values()) for flow in flows.values())
    added = sum(max((size for (what, _), size in flow.items() if what == "adds"), default=0) for flow in flows.values())
    return Cost(len(flows), path, added)
