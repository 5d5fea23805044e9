"""The path of a schedule as it runs: messages start as soon as their data are there, and share the links they meet on.

`schedule.cost` adds up rounds as if all ranks kept step. The executor does not wait for rounds: the root of a tree in
one piece sends to all its children at once, which share its link, so that the child with the most to pass on gets its
data last. With links that all messages share equally, a binomial tree of S bytes in one piece takes
(log2 p)(log2 p + 3)/2 x S instead of 2 log2 p x S. Messages that fit the sender's queue leave it one after the other,
and then rounds are right.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from repro.comm.schedule import ScheduleCost, Transfer, nonempty


@dataclass(slots=True)
class _Flow:
    """One message."""

    transfer: Transfer
    left: float
    needs: set[int] = field(default_factory=set)
    """Messages that its source must have received before."""


def shared_path(transfers: Iterable[Transfer], itemsize: int) -> float:
    """Return the seconds of a schedule over links of one byte a second in each direction, without latency.

    1. A message needs all earlier messages to its source that touch its elements.
    2. A rank starts its messages in the order of their rounds, each as soon as its data are there: the sockets take
       what is not yet on the link.
    3. A message moves at the smaller share of its two links: that of the source among all that it sends, that of the
       target among all that it receives.
    """
    flows = [_Flow(item, float((item.stop - item.start) * itemsize))
             for item in sorted(nonempty(transfers), key=lambda item: item.round)]
    _find_needs(flows)
    waiting: dict[int, list[int]] = {}
    for index, flow in enumerate(flows):
        waiting.setdefault(flow.transfer.source, []).append(index)
    for queue in waiting.values():
        queue.reverse()  # the next one is taken from the end
    now, active = 0.0, set[int]()
    fresh = set(waiting)
    while True:
        # 2. start
        for rank in fresh:
            queue = waiting.get(rank, [])
            while queue and not flows[queue[-1]].needs:
                active.add(queue.pop())
        if not active:
            return now
        # 3. share
        rates = _rates(flows, active)
        step = min(flows[at].left / rates[at] for at in active)
        now += step
        ended = {at for at in active if flows[at].left <= rates[at] * step * (1 + 1e-9)}
        for at in active - ended:
            flows[at].left -= rates[at] * step
        active -= ended
        fresh = {rank for at in ended for rank in (flows[at].transfer.source, flows[at].transfer.target)}
        for rank in fresh:
            for at in waiting.get(rank, ()):
                flows[at].needs -= ended


def _find_needs(flows: list[_Flow]) -> None:
    """1. Note the earlier messages to the source of each on the same elements."""
    received: dict[int, list[int]] = {}
    for index, flow in enumerate(flows):
        item = flow.transfer
        flow.needs = {at for at in received.get(item.source, ()) if flows[at].transfer.round < item.round
                      and flows[at].transfer.start < item.stop and item.start < flows[at].transfer.stop}
        received.setdefault(item.target, []).append(index)


def _rates(flows: list[_Flow], active: set[int]) -> dict[int, float]:
    out: dict[int, int] = {}
    into: dict[int, int] = {}
    for at in active:
        item = flows[at].transfer
        out[item.source] = out.get(item.source, 0) + 1
        into[item.target] = into.get(item.target, 0) + 1
    return {at: 1 / max(out[flows[at].transfer.source], into[flows[at].transfer.target]) for at in active}


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
