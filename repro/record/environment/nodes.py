"""The computers of a run on several: what the record has of each, of links and job, and what a reader is warned of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pydantic import Field

from repro.core.files import LATEST_MS
from repro.core.frozen import Frozen
from repro.record.environment.differences import differences
from repro.record.environment.environment import Environment
from repro.record.environment.placement import Placement, host_of

WALL_SECONDS = 5.0


class NodeRecord(Frozen):
    """A computer other than node 0, which the environment of the record describes."""

    node: int = Field(ge=1)
    host: str
    clock_offset_ns: int
    """Its monotonic clock minus node 0's, when the run began; no time of one is compared with one of the other
    without it."""
    clock_bound_ns: int | None = None
    """The offset is right to this; None: not known."""
    wall_offset_ns: int = 0
    """Its wall clock minus node 0's, right to the same."""
    environment: Environment


class Link(Frozen):
    """From one node to the next, measured with gloo before the first trial on these two."""

    sender: int
    receiver: int
    latency_seconds: float
    bytes_per_second: float | None = None
    """None: not measurable, because a transfer takes hardly longer than latency varies."""


class Allocation(Frozen):
    """The job of a scheduler in which a run began."""

    scheduler: str
    job: str
    nodes: tuple[str, ...]
    queued_seconds: float | None = None
    """Time from the submission to the start, on no trial's clock; None: not known."""
    partition: str | None = None
    resources: str | None = None
    """As the scheduler states them, such as `cpu=8,mem=64G,node=2`."""
    exclusive: bool | None = None
    """No other job runs on its nodes; None: not known."""
    array_task: str | None = None
    """ARRAY_TASK, if the job is one of an array."""
    restarts: int = Field(0, ge=0)
    """Times that the scheduler has started the job again."""


class Nodes(Frozen):
    """The computers of a run from one moment on: a line of nodes.jsonl."""

    at_ms: float = Field(0.0, ge=0, le=LATEST_MS)
    """Wall clock, milliseconds since 1970."""
    here: Placement | None = None
    """Of node 0; None: an early record."""
    preload_seconds: float | None = Field(None, ge=0, le=1e9)
    """Time the launchers' fork server took to load its modules; on no trial's clock."""
    nodes: tuple[NodeRecord, ...] = ()
    links: tuple[Link, ...] = ()
    allocation: Allocation | None = None

    def names(self, count: int | None = None) -> tuple[str, ...]:
        """Return the names of the places of the first `count` nodes, node 0 first; None: of all."""
        others = (item.environment.placement.name if item.environment.placement else item.host for item in self.nodes)
        return (self.here.name if self.here else "", *others)[:count]

    def same_places(self, other: Nodes) -> bool:
        """Return True if nodes, job and placements are the same; clocks and links may differ."""
        return (self.here, self.allocation, self.names()) == (other.here, other.allocation, other.names()) and not any(
            differences(one.environment, two.environment) for one, two in zip(self.nodes, other.nodes, strict=True))


def node_differences(here: Environment, nodes: Iterable[NodeRecord]) -> Iterator[str]:
    """Yield a sentence for every node that differs from node 0 in what affects figures."""
    for item in nodes:
        there = item.environment.model_copy(update={"data": here.data, "plugins": here.plugins})
        if found := [each.text.replace(", now ", " on node 0 but ") for each in differences(here, there)]:
            yield f"node {item.node} ({item.host}) differs: {'; '.join(found)}"


def unfit_nodes(nodes: Iterable[NodeRecord]) -> Iterator[str]:
    """Yield a sentence for every node that is busy, or whose wall clock is off."""
    for item in nodes:
        if load := item.environment.high_load:
            yield (f"node {item.node} ({item.host}): its load is {load:.3g} on {item.environment.cores} core(s): other "
                   "work slows trials, and not all alike")
        if abs(item.wall_offset_ns) > WALL_SECONDS * 1e9 + (item.clock_bound_ns or 0):
            yield (f"node {item.node} ({item.host}): its wall clock is {item.wall_offset_ns / 1e9:+.0f} s against node "
                   "0's: dates in its logs are off, durations are not; set it by NTP")


def one_computer(names: Sequence[str]) -> Iterator[str]:
    """Yield a sentence for every node on a computer of an earlier one.

    Args:
        names: of the places of all nodes.
    """
    hosts = [host_of(name) for name in names]
    for number, host in enumerate(hosts):
        if (first := hosts.index(host)) < number:
            yield f"nodes {first} and {number} are both on {host}: no network is between them, and they may share cores"


def slow_links(found: Sequence[Link]) -> Iterator[str]:
    """Yield a sentence for every link that has less than half the rate of the fastest."""
    best = max((link.bytes_per_second or 0.0 for link in found), default=0.0)
    for link in found:
        if link.bytes_per_second is not None and link.bytes_per_second < best / 2:
            yield (f"the link from node {link.sender} to node {link.receiver} is slow: "
                   f"{link.bytes_per_second / 1e6:.3g} MB/s, the fastest has {best / 1e6:.3g} MB/s")


def shared_nodes(allocation: Allocation | None) -> Iterator[str]:
    """Yield a sentence if other jobs may run on the nodes of a job."""
    if allocation is not None and allocation.exclusive is False:
        yield (f"{allocation.scheduler} job {allocation.job} shares its nodes: other jobs may run on "
               f"{', '.join(allocation.nodes)} and slow trials, not all alike; submit it with --exclusive")

