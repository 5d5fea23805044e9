"""The other computers of a run, as its record keeps them, and what differs between them and node 0."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pydantic import Field

from repro.core.frozen import Frozen
from repro.record.environment.differences import differences
from repro.record.environment.environment import Environment

BUSY = 0.25
"""Load per core above which a node is busy, as in the preflight checks of node 0."""
WALL_SECONDS = 5.0


class NodeRecord(Frozen):
    """A computer other than node 0, which the environment of the record describes."""

    node: int = Field(ge=1)
    host: str
    clock_offset_ns: int
    """Its monotonic clock minus node 0's, when the run began; no time of one is compared with one of the other
    without it."""
    clock_bound_ns: int | None
    """The offset is right to this; None: not known."""
    wall_offset_ns: int = 0
    """Its wall clock minus node 0's, right to the same."""
    environment: Environment


class Link(Frozen):
    """From one node to the next, measured with gloo before the first trial."""

    sender: int
    receiver: int
    latency_seconds: float
    bytes_per_second: float


class Allocation(Frozen):
    """The job of a scheduler in which a run began."""

    scheduler: str
    job: str
    nodes: tuple[str, ...]
    queued_seconds: float | None
    """Time from the submission to the start, on no trial's clock; None: not known."""


class Nodes(Frozen):
    """The content of launchers.json: what the launchers of a run report once."""

    preload_seconds: float | None = Field(None, ge=0, le=1e9)
    """Time the launchers' fork server took to load its modules; on no trial's clock."""
    nodes: tuple[NodeRecord, ...] = ()
    links: tuple[Link, ...] = ()
    allocation: Allocation | None = None


def node_differences(here: Environment, nodes: Iterable[NodeRecord]) -> Iterator[str]:
    """Yield a sentence for every node that differs from node 0 in what affects figures."""
    for item in nodes:
        there = item.environment.model_copy(update={"data": here.data, "plugins": here.plugins})
        if found := [each.text.replace(", now ", " on node 0 but ")
                     for each in differences(_without_step(here), _without_step(there))]:
            yield f"node {item.node} ({item.host}) differs: {'; '.join(found)}"


def unfit_nodes(nodes: Iterable[NodeRecord]) -> Iterator[str]:
    """Yield a sentence for every node that is busy, or whose wall clock is off."""
    for item in nodes:
        load, cores = item.environment.load_1min, item.environment.cores
        if load is not None and load > BUSY * cores:
            yield (f"node {item.node} ({item.host}): its load is {load:.3g} on {cores} core(s): other work slows "
                   "trials, and not all alike")
        if abs(item.wall_offset_ns) > WALL_SECONDS * 1e9 + (item.clock_bound_ns or 0):
            yield (f"node {item.node} ({item.host}): its wall clock is {item.wall_offset_ns / 1e9:+.0f} s against node "
                   "0's: dates in its logs are off, durations are not; set it by NTP")


def slow_links(found: Sequence[Link]) -> Iterator[str]:
    """Yield a sentence for every link that has less than half the rate of the fastest."""
    best = max((link.bytes_per_second for link in found), default=0.0)
    for link in found:
        if link.bytes_per_second < best / 2:
            yield (f"the link from node {link.sender} to node {link.receiver} is slow: "
                   f"{link.bytes_per_second / 1e6:.3g} MB/s, the fastest has {best / 1e6:.3g} MB/s")


def _without_step(environment: Environment) -> Environment:
    """Return an environment without Slurm's variables, which are about the step that a process is started by."""
    settings = {name: value for name, value in environment.settings.items() if not name.startswith("SLURM_")}
    return environment.model_copy(update={"settings": settings})
