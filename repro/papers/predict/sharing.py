"""The path of a schedule as it runs: messages start as soon as their data are there, and share the links they meet on.

`schedule.cost` adds up rounds as if all ranks kept step. The executor does not wait for rounds: a rank of a tree in
chunks sends one on as soon as it has it. It hands its messages to sockets in their order, where each waits for the one
before it, or shares the link with it if that one is too short to fill the queue. With one message at a time a binomial
tree of S bytes in one piece takes 2 log2 p x S, as by rounds; with two, 3 log2 p - 1 times.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from repro.comm.schedule import ScheduleCost, Transfer, nonempty


@dataclass(slots=True)
class _Flow:
    """One message."""

    transfer: Transfer
    left: float
    ends: tuple[int, int]
    """Its two links: the nodes of source and target; within a node, negative, the two ranks themselves, or the node."""
    inside: bool
    """It stays within a node."""
    needs: set[int] = field(default_factory=set)
    """Messages that its source must have received before."""


def shared_path(
    transfers: Iterable[Transfer], node_of_rank: Sequence[int], itemsize: int, ratio: float = 1.0,
    together: bool = False, at_once: int = 1,
) -> tuple[float, float]:
    """Return the bytes on the path of a schedule (between nodes, within one), without latency.

    The time in which a message between nodes is on its way counts as between; the rest counts as within.

    1. A message needs all earlier messages to its source that touch its elements.
    2. A rank starts its messages in the order of their rounds, each as soon as its data are there and less than
       `at_once` of its messages are on their way.
    3. A message moves at the smaller share of its two links: that of the source among all that it sends, that of the
       target among all that it receives.

    Args:
        node_of_rank: the ranks of a node share its link to other nodes; each has a link of its own within the node.
        together: all that the ranks of a node send to each other shares one link instead.
        ratio: seconds a byte within a node, over that between nodes.
    """
    flows = list[_Flow]()
    for item in sorted(nonempty(transfers), key=lambda item: item.round):
        flows.append(_Flow(item, float((item.stop - item.start) * itemsize),
                           *_ends(item, node_of_rank, together)))
    _find_needs(flows)
    waiting: dict[int, list[int]] = {}
    for index, flow in enumerate(flows):
        waiting.setdefault(flow.transfer.source, []).append(index)
    for queue in waiting.values():
        queue.reverse()  # the next one is taken from the end
    between, within, active, sending = 0.0, 0.0, set[int](), dict[int, int]()
    fresh = set(waiting)
    while True:
        # 2. start
        for rank in fresh:
            queue = waiting.get(rank, [])
            while queue and not flows[queue[-1]].needs and sending.get(rank, 0) < at_once:
                active.add(queue.pop())
                sending[rank] = sending.get(rank, 0) + 1
        if not active:
            return between, within
        # 3. share
        rates = _rates(flows, active, ratio)
        step = min(flows[at].left / rates[at] for at in active)
        if all(flows[at].inside for at in active):
            within += step / ratio
        else:
            between += step
        ended = {at for at in active if flows[at].left <= rates[at] * step * (1 + 1e-9)}
        for at in active - ended:
            flows[at].left -= rates[at] * step
        active -= ended
        for at in ended:
            sending[flows[at].transfer.source] -= 1
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


def _rates(flows: list[_Flow], active: set[int], ratio: float) -> dict[int, float]:
    out = Counter(flows[at].ends[0] for at in active)
    into = Counter(flows[at].ends[1] for at in active)
    return {at: 1 / ((ratio if flows[at].inside else 1) * max(out[flows[at].ends[0]], into[flows[at].ends[1]]))
            for at in active}


def _ends(item: Transfer, node_of_rank: Sequence[int], together: bool) -> tuple[tuple[int, int], bool]:
    """Return the links of a message, and True if it stays within a node."""
    source, target = node_of_rank[item.source], node_of_rank[item.target]
    if source != target:
        return (source, target), False
    return ((-1 - source, -1 - source) if together else (-1 - item.source, -1 - item.target)), True


def cost_by_class(
    transfers: Iterable[Transfer], node_of_rank: Sequence[int], itemsize: int, together: bool = False
) -> tuple[ScheduleCost, ScheduleCost]:
    """Compute rounds and path of a schedule by class of link: (between nodes, within one); `together` as above.

    A round with a message between nodes counts there: the ranks of a node share its link. A round without one counts
    within. Reduced bytes are left at zero.
    """
    between: dict[int, dict[tuple[str, int], int]] = {}
    within: dict[int, dict[tuple[str, int], int]] = {}
    for item in nonempty(transfers):
        size, (ends, inside) = (item.stop - item.start) * itemsize, _ends(item, node_of_rank, together)
        flow = (within if inside else between).setdefault(item.round, {})
        for key in zip(("sends", "receives"), ends, strict=True):
            flow[key] = flow.get(key, 0) + size
    for number in between:
        within.pop(number, None)
    return tuple(  # type: ignore[return-value]  # two of them
        ScheduleCost(len(flows), sum(max(flow.values()) for flow in flows.values()), 0) for flows in (between, within))


NCCL = ("ring", "tree")
"""Of NCCL's algorithms, those that are modelled."""


def nccl_cost(kind: str, ranks: int, nodes: int, size: int) -> tuple[ScheduleCost, ScheduleCost]:
    """Return the cost of NCCL's all-reduce of `size` bytes by class of link, by NCCL's own model (src/graph/tuning.cc).

    Its messages are pipelined, so all bytes pass the slowest class of links while the latencies of a path add up:
    2(ranks - 1) hops of a ring, of which 2(nodes - 1) are between nodes; in a tree, a chain through the ranks of a node
    and log2(nodes) levels, up and down. Its factors of single GPU generations and protocols are in the fitted rates.
    """
    across = 2 * (nodes - 1) if kind == "ring" else 2 * int(math.log2(nodes))
    inside = 2 * (ranks - nodes) if kind == "ring" else 2 * (ranks // nodes - 1)
    moved = round(2 * size * (ranks - 1) / ranks) if kind == "ring" else 2 * size
    return ScheduleCost(across, moved if nodes > 1 else 0, 0), ScheduleCost(inside, 0 if nodes > 1 else moved, 0)
