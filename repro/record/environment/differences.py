"""Differences of machine, code, plan or record, each with its kind: between starts of a run, and between its nodes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from pydantic import Field

from repro.core.files import LATEST_MS
from repro.core.frozen import Frozen
from repro.record.environment.environment import Environment
from repro.record.environment.placement import Placement, split
from repro.record.environment.plugin_code import PluginCode

DifferenceKind = Literal["code", "libraries", "hardware", "settings", "data", "plan", "record"]
FACTS: dict[str, DifferenceKind] = {
    "repro_version": "code", "python": "libraries", "system": "hardware", "cpu": "hardware", "cores": "hardware",
    "memory_bytes": "hardware", "device": "hardware", "devices": "hardware", "commit": "code", "dirty": "code",
}
"""Fields that are the identity of a run, with packages, settings, limits and data, which are compared one by one."""
SAME_MEMORY = 0.01
"""Computers of one class differ by some pages."""
OWN = "repro-harness"
ABSENT = "not installed"
SHOWN = 4
"""The number of packages that a text names."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference that forbids to resume a run unless `--force` is given."""

    kind: DifferenceKind
    text: str


def gibibytes(memory_bytes: int | None) -> str:
    """Return the memory of a class of computers, whose exact sizes differ by some pages."""
    return "unknown" if memory_bytes is None else f"{memory_bytes / (1 << 30):.3g} GiB"


def differences(then: Environment, now: Environment) -> list[Difference]:
    """List differences between the identities of two environments; where they were placed is none."""
    code = (Difference("code", text) for text in other_code(then.plugins, now.plugins))
    return [*_facts(then, now), *code, *_tables(then, now), *_packages(then, now), *_data(then, now)]


def _facts(then: Environment, now: Environment) -> Iterator[Difference]:
    for name, kind in FACTS.items():
        old, new = getattr(then, name), getattr(now, name)
        if name == "memory_bytes":
            if old and new and abs(old - new) <= SAME_MEMORY * old:
                continue
            old, new = gibibytes(old), gibibytes(new)
        if old != new:
            yield Difference(kind, f"{name.replace('_', ' ')} {_shown(old)}, now {_shown(new)}")
    if then.diff_sha256 and now.diff_sha256 and then.diff_sha256 != now.diff_sha256:
        yield Difference("code", f"uncommitted changes {then.diff_sha256[:12]}, now {now.diff_sha256[:12]}")


def other_code(then: Iterable[PluginCode], now: Iterable[PluginCode]) -> Iterator[str]:
    """Name each plug-in whose code has changed, with both versions of it."""
    olds, news = ({item.plugin: item for item in side} for side in (then, now))
    for name in sorted({*olds, *news}):
        if not same_code(old := olds.get(name), new := news.get(name)):
            yield f"plug-in {name} {old.text() if old else 'unknown'}, now {new.text() if new else 'unknown'}"


def changed_plugins(one: Environment, other: Environment) -> list[str]:
    """Name the plug-ins whose source both environments know and which differ, with both versions."""
    news = {item.plugin: item for item in other.plugins}
    return [f"plug-in {old.plugin} ({old.text()} against {news[old.plugin].text()})" for old in one.plugins
            if old.plugin in news and not same_code(old, news[old.plugin])]


def changed_data(one: Environment, other: Environment) -> list[str]:
    """Name the data sets of workloads in both environments whose content differs."""
    news = {item.workload: item for item in other.data}
    return [f"data of {old.workload} ({old.sha256[:12]} against {news[old.workload].sha256[:12]})" for old in one.data
            if old.workload in news and news[old.workload].sha256 != old.sha256]


def same_code(one: PluginCode | None, other: PluginCode | None) -> bool:
    """Return True if two versions of a plug-in have the same source; a commit that leaves it alone changes nothing."""
    return one is other or (one is not None and other is not None
                            and (one.distribution, one.version, one.sha256)
                            == (other.distribution, other.version, other.sha256))


def _tables(then: Environment, now: Environment) -> Iterator[Difference]:
    # An early record has variables and limits of its placement among the others.
    own = partial(split, places=False)
    tables: list[tuple[DifferenceKind, str, dict[str, str], dict[str, str]]] = [
        ("libraries", "library", then.libraries, now.libraries),
        ("settings", "setting", own(then.settings), own(now.settings)),
        ("hardware", "limit", own(then.limits), own(now.limits))]
    for kind, what, olds, news in tables:
        for name in sorted({*olds, *news}):
            if olds.get(name) != news.get(name):
                yield Difference(kind, f"{what} {name} {_shown(olds.get(name))}, now {_shown(news.get(name))}")


def _packages(then: Environment, now: Environment) -> Iterator[Difference]:
    """Yield one difference for all packages installed, removed or replaced, if both environments list packages.

    Libraries have separate differences. The harness itself is compared by version and commit: whether it is found
    as a package depends on the working directory.
    """
    others = {re.sub(r"[-_.]+", "-", name).lower() for name in (*then.libraries, *now.libraries, OWN)}
    olds, news = ({re.sub(r"[-_.]+", "-", name).lower(): number for name, _, number in
                   (text.partition("==") for text in item.packages)} for item in (then, now))
    if not olds or not news:
        return
    found = [f"{name} {olds.get(name, ABSENT)}, now {news.get(name, ABSENT)}"
             for name in sorted({*olds, *news} - others) if olds.get(name) != news.get(name)]
    if found:
        more = f" (and {len(found) - SHOWN} more)" if len(found) > SHOWN else ""
        yield Difference("libraries", f"package{'s' if len(found) > 1 else ''} {'; '.join(found[:SHOWN])}{more}")


def _data(then: Environment, now: Environment) -> Iterator[Difference]:
    hashes = {item.workload: item.sha256 for item in now.data}
    for item in then.data:
        if hashes.get(item.workload) != item.sha256:
            yield Difference("data", f"data of {item.workload} {item.sha256[:12]}, "
                                     f"now {_shown(hashes.get(item.workload))[:12]}")


def _shown(value: object) -> str:
    return "unknown" if value is None else str(value)


BUSY = 0.25
"""Load per core above which a machine is busy."""
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
    bytes_per_second: float | None
    """None: not measurable, because a transfer takes hardly longer than latency varies."""


class Allocation(Frozen):
    """The job of a scheduler in which a run began."""

    scheduler: str
    job: str
    nodes: tuple[str, ...]
    queued_seconds: float | None
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
        load, cores = item.environment.load_1min, item.environment.cores
        if load is not None and load > BUSY * cores:
            yield (f"node {item.node} ({item.host}): its load is {load:.3g} on {cores} core(s): other work slows "
                   "trials, and not all alike")
        if abs(item.wall_offset_ns) > WALL_SECONDS * 1e9 + (item.clock_bound_ns or 0):
            yield (f"node {item.node} ({item.host}): its wall clock is {item.wall_offset_ns / 1e9:+.0f} s against node "
                   "0's: dates in its logs are off, durations are not; set it by NTP")


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

