"""Launcher for several computers: torch elastic on each, started by agents that have joined this one."""

from __future__ import annotations

import json
import os
import secrets
import signal
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, PrivateAttr

from repro.core.errors import TrialError, UsageError
from repro.launchers.local import Local
from repro.launchers.nodes.agent import Launch
from repro.launchers.nodes.channel import LinkLost, files_below, send_files
from repro.launchers.nodes.head import Head, Node, NodeWatch
from repro.launchers.nodes.hosts import Starts, key_of, listen, read_secret
from repro.launchers.processes.node_launch import NodeEnd, NodeLaunch, interface_of
from repro.launchers.processes.rank import LOOPBACK, Assignment, Membership
from repro.seams.launching import LaunchRequest, LaunchResult
from repro.seams.plugin import Setting

OPEN_SECONDS = 300.0
"""Longest time in which a node loads its modules."""
LINKS_SECONDS, LINK_SECONDS = 180.0, 2.0
"""Longest time in which the links are measured: in all, and more for each node."""
STOPPED = -int(signal.SIGTERM)
"""Exit code of a rank that was ended because of another one: as elastic ends them."""


class Torchrun(Local):
    """`nodes` computers with equal numbers of ranks. This one is node 0; agents on the others join it.

    On each of the others: `repro agent --join HOST:PORT`. A trial with fewer processes than nodes takes as many nodes.
    """

    title: ClassVar[str] = "torch elastic on several computers, joined by repro agent"
    always_shown: ClassVar[tuple[str, ...]] = ("nodes",)

    nodes: int = Field(ge=1, le=1024)
    """Computers, this one included."""
    ranks_per_node: int | None = Field(default=None, ge=1)
    """Ranks on each node that a trial takes, as torchrun's --nproc-per-node; None: as few as the nodes allow."""
    shared: bool = False
    """The run's folder is on a file system that all nodes see under the same path. False: what ranks write there is
    sent here at the end of a trial."""
    join_seconds: float = Field(default=300.0, gt=0, le=86_400)
    """Longest time to wait for agents, at the start and after one was lost."""
    silence_seconds: float = Field(default=15.0, ge=2, le=3_600)
    """A node from which nothing was heard for this time is lost."""

    _open: ClassVar[bool] = False
    """One is open in this process: agents join one address."""
    _head: Head | None = PrivateAttr(default=None)
    _device: str = PrivateAttr(default="cpu")
    _modules: tuple[str, ...] = PrivateAttr(default=())
    _number: int = PrivateAttr(default=0)
    _starts: Starts = PrivateAttr(default_factory=Starts)
    _links: list[dict[str, Any]] = PrivateAttr(default_factory=list)
    _linked: dict[int, Any] = PrivateAttr(default_factory=dict)
    """Number of a node -> its placement when its links were measured."""

    @property
    def node_count(self) -> int | None:
        return self.nodes

    def unsupported(self, setting: Setting) -> str | None:
        used, each = self.nodes_of(setting.launched), self.ranks_per_node
        if each is not None and setting.launched % each:
            return f"ranks_per_node {each} does not divide {setting.launched} processes"
        if used > self.nodes:
            return (f"{setting.launched} processes with ranks_per_node {each} need {used} nodes, and nodes is "
                    f"{self.nodes}")
        if setting.launched % used:
            return f"{setting.launched} processes cannot be placed on {used} nodes in equal blocks"
        return super().unsupported(replace(setting, processes=setting.launched // used, servers=0,
                                           device_count=setting.device_count // used))

    def nodes_of(self, processes: int) -> int:
        if self.ranks_per_node is None:
            return min(self.nodes, processes)
        return max(1, processes // self.ranks_per_node)  # the gate's reference is one process

    def gather(self) -> None:
        self._measure_links()

    @property
    def one_folder(self) -> bool:
        return self.shared or self.nodes == 1

    def open(self, preload: Sequence[str], device: str) -> None:
        """Listen, start the fork server, and return when every node has joined and is warm.

        Raises:
            UsageError: too few nodes have joined, one runs other code, or modules cannot be loaded on one.
        """
        self._modules, self._device = tuple(preload), device
        if Torchrun._open:
            raise UsageError("a run has one launcher torchrun; give all trials the same, with the most nodes: one with "
                             "fewer processes takes fewer nodes")
        text = self._make_secret()
        head = Head(*self._address(), key_of(text), self.silence_seconds, self._tell)
        Torchrun._open = True
        try:
            self._start_agents(head.port, text)
            super().open(preload, device)
            self._head = head
            try:
                self._complete(sort=True)
                self._measure_links()
            except TrialError as error:
                raise UsageError(str(error)) from error
        except BaseException:
            # Ctrl-C too: agents must not wait for a run that never begins.
            self._head = head
            self.close()
            raise

    def close(self) -> None:
        if self._head is not None:
            self._head.close()
            self._head, Torchrun._open = None, False
        self._starts.close(self.grace_seconds)
        super().close()

    @property
    def links(self) -> Sequence[Mapping[str, Any]]:
        return self._links

    @property
    def other_nodes(self) -> Sequence[Mapping[str, Any]]:
        return [{"node": node.number, "host": node.host, "clock_offset_ns": node.clock.offset_ns,
                 "clock_bound_ns": node.clock.bound_ns, "wall_offset_ns": node.clock.wall_offset_ns,
                 "environment": dict(node.description)}
                for node in sorted(self._head.nodes if self._head else (), key=lambda node: node.number)]

    def launch(self, request: LaunchRequest) -> LaunchResult:
        """Run the entry on all nodes and wait for all of them."""
        found = self._launch(request, self.nodes_of(request.processes), self.shared)
        assert self._head is not None
        if not any(node.lost for node in self._head.nodes):
            self._starts.forgive()
        return found

    def _launch(self, request: LaunchRequest, used: int, shared: bool) -> LaunchResult:
        from repro.launchers.processes.fixed_nodes import bind_store

        assert self._server is not None, "launch comes after open"
        nodes = self._complete()[: used - 1]
        request.folder.mkdir(parents=True, exist_ok=True)
        self._server.revive()
        self._number += 1
        watch, here, processes = NodeWatch(request, nodes, self._number), None, request.processes // used
        own = {node.channel.own_address for node in nodes} or {LOOPBACK}  # where the other nodes reach this one
        address, everywhere = min(own), len(own) > 1
        store, prefix = bind_store("" if everywhere else address), secrets.token_hex(16)
        for node in nodes:
            self._send(node, request, store.port, prefix, used, shared)
        interface = interface_of(nodes[0].channel.own_address) if nodes else {}
        work = Assignment(request.entry, request.payload, str(request.folder), {**interface, **request.environment},
                          request.expendable)
        try:
            here = NodeLaunch(work, processes, None, Membership(0, used, address, store.port, store, prefix),
                              self.monitor_seconds, self.grace_seconds).carry_out(watch.in_time, self._server.folder)
        finally:
            if here is None or any(code != 0 for code in here.codes):
                for node in nodes:
                    node.send("stop", {"number": self._number})
        return _result([here, *(watch.end_of(node, processes) for node in nodes)], nodes, watch)

    # ---- nodes

    def _address(self) -> tuple[str, int]:
        """Return host ("" for all addresses) and port (0 for any) that agents join."""
        return listen()

    def _make_secret(self) -> str:
        return read_secret(make=True)

    def _start_agents(self, port: int, text: str) -> None:
        """Start the agents of the other nodes, as far as the user does not.

        Raises:
            UsageError: a host cannot be found, or there are too few.
        """
        self._starts.start_named(self.nodes - 1, port, text, self.join_seconds)

    def _complete(self, sort: bool = False) -> list[Node]:
        """Return the other nodes, by number, after the missing ones have joined.

        Args:
            sort: number new nodes by host, so that they do not depend on the order in which they come.
        """
        head = self._head
        assert head is not None
        there = [node for node in head.nodes if not node.lost]
        missing = sorted({*range(1, self.nodes)} - {node.number for node in there})
        gone = {node.number: node for node in head.nodes if node.lost}
        until, came = time.monotonic() + self.join_seconds, list[Node]()
        if missing:
            head.refused = ""
            if not self._starts.any:
                self._tell(f"waiting up to {self.join_seconds:g} s for {_awaited(missing, gone)}; there: "
                           f"{self._join_command()}")
        while len(came) < len(missing) or not self._opened(came):
            for joined in came:
                if joined.lost and (text := f"{joined.host} joined and was lost ({joined.lost})") != head.refused:
                    head.refused = text
                    self._tell(f"{text}; waiting for it again")
            came = [node for node in came if not node.lost]
            if len(came) == len(missing):
                continue
            node = head.join(until - time.monotonic(), lambda: self._starts.revive(head.started, self._tell))
            if node is None and self._starts.problem:
                raise TrialError(f"{1 + len(there) + len(came)} of {self.nodes} nodes are there: "
                                 f"{self._starts.problem}")
            if node is None:
                names = ", ".join(gone[number].name if number in gone else f"node {number}"
                                  for number in missing[len(came) :])
                refused = f"; the last one: {head.refused}" if head.refused else ""
                raise TrialError(f"{names} did not join within {self.join_seconds:g} s; there: "
                                 f"{self._join_command()}{refused}")
            came.append(node)
            node.send("open", {"preload": self._modules, "device": self._device,
                               "silence_seconds": self.silence_seconds})
        for node in list(came):  # a host that comes back keeps its ranks
            number = next((number for number in missing if number in gone and
                           (gone[number].host, gone[number].start) == (node.host, node.start)), None)
            if number is not None:
                node.number = number
                missing.remove(number)
                came.remove(node)
                there.append(node)
        for number, node in zip(missing, sorted(came, key=lambda item: (item.host, item.pid)) if sort else came,
                                strict=True):
            node.number = number
        found = sorted((*there, *came), key=lambda node: node.number)
        return self._complete() if any(node.lost for node in found) else found

    def _join_command(self) -> str:
        """Return the command that starts an agent of this run."""
        assert self._head is not None
        return f"repro agent --join {self._address()[0] or os.uname().nodename}:{self._head.port}"

    def _opened(self, nodes: Sequence[Node]) -> bool:
        """Wait until nodes are warm; False: one was lost meanwhile."""
        for node in nodes:
            if node.ready:
                continue
            answer = node.answer(OPEN_SECONDS)
            if answer is not None and answer.kind == "unable":
                raise TrialError(f"{node.name}: {answer.content['reason']}")
            if answer is None:
                node.leave("no answer")
            node.ready = answer is not None
        return all(not node.lost for node in nodes)

    def _measure_links(self) -> None:
        """Measure those links of a ring of all nodes that a new node is part of, when all nodes are there."""
        places = {node.number: node.description.get("placement") for node in self._complete()}
        new = [number for number, place in places.items() if self._linked.get(number) != place]
        if not new:
            return
        with tempfile.TemporaryDirectory(prefix="repro-links-") as folder:
            seconds = LINKS_SECONDS + LINK_SECONDS * self.nodes
            request = LaunchRequest(entry=ENTRY, payload={"new": new}, processes=self.nodes, device="cpu",
                                    folder=Path(folder), timeout_seconds=seconds)
            outcome = self._launch(request, self.nodes, shared=False)
            if outcome.ok:
                kept = [link for link in self._links if not {link["sender"], link["receiver"]} & {*new}]
                self._links = sorted([*kept, *json.loads(Path(folder, LINKS).read_bytes())],
                                     key=lambda link: int(link["sender"]))
                self._linked = places
                return
        assert self._head is not None
        if not any(node.lost for node in self._head.nodes):
            raise TrialError(f"the nodes cannot talk to each other: {outcome.failure_text()}; is a firewall between "
                             "them? GLOO_SOCKET_IFNAME names the interface")
        self._measure_links()

    def _send(
        self, node: Node, request: LaunchRequest, port: int, prefix: str, used: int, shared: bool
    ) -> None:
        """Tell a node to launch its ranks."""
        processes = request.processes // used
        root, probe = (request.root or request.folder).resolve(), ""
        if shared:
            probe = str(root / "plan.json")
        else:
            try:
                names = [f"code/{name}" for name in files_below(root / "code")]
                send_files(node.channel, self._number, root, names)
            except LinkLost as error:
                node.leave(str(error))
        node.send("launch", asdict(Launch(
            number=self._number, entry=request.entry, payload=dict(request.payload),
            folder=request.folder.resolve().relative_to(root).as_posix(), first=node.number * processes,
            processes=processes, node=node.number, nodes=used, port=port, prefix=prefix,
            environment=dict(request.environment), expendable=request.expendable, probe=probe, root=str(root),
            monitor_seconds=self.monitor_seconds, grace_seconds=self.grace_seconds)))


def _result(found: Sequence[NodeEnd], nodes: Sequence[Node], watch: NodeWatch) -> LaunchResult:
    """Return the end of a launch; the reason of a rank that failed on another node names that node."""
    # A rank that was killed because of another one is no cause.
    codes = [STOPPED if killed and not watch.passed else code for item in found
             for code, killed in zip(item.codes, item.killed, strict=True)]
    suspect = next((item.suspect for item in found if item.suspect is not None), None)
    result = watch.result(codes, [report for item in found for report in item.reports], suspect)
    each, names = len(codes) // len(found), {node.number: node.name for node in nodes}
    return replace(result, ends=tuple(
        replace(end, reason=f"{end.reason} (on {names[end.rank // each]})")
        if end.failed and end.rank >= each and names[end.rank // each] not in end.reason else end
        for end in result.ends))


def _awaited(missing: Sequence[int], gone: Mapping[int, Node]) -> str:
    """Return what a run waits for, in words."""
    if lost := [f"{gone[number].name}, which was lost ({gone[number].lost})" for number in missing if number in gone]:
        return ", ".join(lost)
    return f"{len(missing)} more node{'s' * (len(missing) > 1)}"


ENTRY = f"{__name__}:measure_ring"
LINKS = "links.json"
PINGS, TRIES = 20, 3
SMALLEST, LARGEST, GROWTH = 1 << 20, 1 << 30, 4
"""Bytes of a transfer: the first, the most, and the factor between two."""
LONG_SECONDS = 0.05
"""Transfers grow until one takes this time: a fast link would move a few megabytes within its latency."""


def measure_ring(folder: str, payload: Mapping[str, Any]) -> None:
    """Measure the links of a ring of nodes that end at a `new` one; the entry point of one rank on each. Rank 0 writes
    `LINKS`.

    Latency is half the median of `PINGS` exchanges of 8 bytes. Transfers grow from `SMALLEST` to `LARGEST` bytes until
    the best of `TRIES` takes `LONG_SECONDS`; the rate is that of this one.
    """
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    small = torch.zeros(1, dtype=torch.int64)
    found: list[dict[str, float | None]] = []
    for sender in range(world):
        receiver = (sender + 1) % world
        if not {sender, receiver} & {*payload["new"]}:
            continue
        dist.barrier()
        if rank == sender:
            pings = [_exchange(dist, small, small, receiver) for _ in range(PINGS)]
            size = SMALLEST
            while (seconds := min(_transfer(dist, size, receiver) for _ in range(TRIES))) < LONG_SECONDS \
                    and size < LARGEST:
                size *= GROWTH
            dist.send(torch.zeros(1, dtype=torch.int64), receiver)
            found.append({"sender": sender, "receiver": receiver, "latency_seconds": statistics.median(pings) / 2,
                          "bytes_per_second": link_rate(size, seconds, pings)})
        elif rank == receiver:
            for _ in range(PINGS):
                dist.recv(small, sender)
                dist.send(small, sender)
            dist.recv(small, sender)
            while size := int(small):
                dist.recv(torch.empty(size, dtype=torch.uint8), sender)
                dist.send(small, sender)
                dist.recv(small, sender)
    every: list[Any] = [None] * world
    dist.all_gather_object(every, found)
    if rank == 0:
        Path(folder, LINKS).write_text(json.dumps([link for links in every for link in links]))
    dist.destroy_process_group()


def _exchange(dist: Any, content: Any, answer: Any, other: int) -> float:
    """Send `content`, wait for an answer and return the seconds."""
    begin = time.perf_counter()
    dist.send(content, other)
    dist.recv(answer, other)
    return time.perf_counter() - begin


def _transfer(dist: Any, size: int, other: int) -> float:
    """Send `size` bytes, whose number goes ahead, wait for an answer and return the seconds."""
    import torch

    dist.send(torch.tensor([size]), other)
    return _exchange(dist, torch.zeros(size, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64), other)


def link_rate(size: int, seconds: float, pings: Sequence[float]) -> float | None:
    """Return the bytes per second of a link; None: not measurable.

    The time of a transfer without latency must be at least twice the spread of latencies (10th to 90th percentile).

    Args:
        seconds: time of a transfer of `size` bytes and its answer.
        pings: times of exchanges without content.
    """
    tenths, own = statistics.quantiles(pings, n=10), seconds - statistics.median(pings)
    return size / own if own > 0 and own >= 2 * (tenths[-1] - tenths[0]) else None
