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
from repro.launchers.nodes.hosts import Starts, find, key_of, listen, read_secret
from repro.launchers.processes.node_launch import NodeEnd, NodeLaunch, interface_of
from repro.launchers.processes.rank import LOOPBACK, Assignment, Membership
from repro.seams.launching import LaunchRequest, LaunchResult
from repro.seams.plugin import Setting

OPEN_SECONDS = 300.0
"""Longest time in which a node loads its modules."""
LINKS_SECONDS = 180.0
"""Longest time in which the links are measured."""
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

    @property
    def node_count(self) -> int | None:
        return self.nodes

    def unsupported(self, setting: Setting) -> str | None:
        used = self._used(setting.launched)
        if setting.launched % used:
            return f"{setting.launched} processes cannot be placed on {used} nodes in equal blocks"
        return super().unsupported(replace(setting, processes=setting.launched // used, servers=0))

    def _used(self, processes: int) -> int:
        """Return the number of nodes that a launch takes."""
        return min(self.nodes, processes)

    def gather(self, processes: int) -> int:
        self._complete()
        return self._used(processes)

    @property
    def one_folder(self) -> bool:
        return self.shared or self.nodes == 1

    @property
    def awaited(self) -> str:
        if self.nodes == 1 or find(self.nodes - 1):
            return ""
        host, port = listen()
        there = f"repro agent --join {host or os.uname().nodename}:{port}"
        more = f"{self.nodes - 1} more node{'s' if self.nodes > 2 else ''}"
        return f"waiting up to {self.join_seconds:g} s for {more}; there: {there}"

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
        head = Head(*self._address(), key_of(text), self.silence_seconds)
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
        """Run the entry on all nodes and wait for all of them.

        Raises:
            TrialError: a node is missing, or elastic failed here.
        """
        return self._launch(request, self.shared)

    def _launch(self, request: LaunchRequest, shared: bool) -> LaunchResult:
        from repro.launchers.processes.fixed_nodes import bind_store

        assert self._server is not None, "launch comes after open"
        used = self._used(request.processes)
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
        """Start the agents of the hosts that are named, with the secret `text`; others are started by the user.

        Raises:
            UsageError: a host cannot be found, or there are too few.
        """
        named = find(self.nodes - 1) if self.nodes > 1 else None
        if named is None:
            return
        for host in named.names:
            self._starts.start(f"{Path(named.command[0]).name} {host}", named.agent(host, port, self.join_seconds),
                               stdin=f"{text}\n")

    def _complete(self, sort: bool = False) -> list[Node]:
        """Return the other nodes, by number, after the missing ones have joined.

        Args:
            sort: number new nodes by host, so that they do not depend on the order in which they come.

        Raises:
            TrialError: too few have joined in time.
            UsageError: one was refused.
        """
        assert self._head is not None
        there = [node for node in self._head.nodes if not node.lost]
        missing = sorted({*range(1, self.nodes)} - {node.number for node in there})
        gone = {node.number: node for node in self._head.nodes if node.lost}
        until, came = time.monotonic() + self.join_seconds, list[Node]()
        while len(came) < len(missing) or not self._opened(came):
            came = [node for node in came if not node.lost]
            if len(came) == len(missing):
                continue
            node = self._head.join(until - time.monotonic(), lambda: not self._starts.problem())
            if node is None and (problem := self._starts.problem()):
                raise TrialError(f"{missing[len(came)]} of {self.nodes} nodes are there: {problem}")
            if node is None:
                names = ", ".join(gone[number].name if number in gone else f"node {number}"
                                  for number in missing[len(came) :])
                raise TrialError(f"{names} did not join within {self.join_seconds:g} s; there: "
                                 f"repro agent --join HOST:{self._head.port}")
            came.append(node)
            node.send("open", {"preload": self._modules, "device": self._device,
                               "silence_seconds": self.silence_seconds})
        for number, node in zip(missing, sorted(came, key=lambda item: (item.host, item.pid)) if sort else came,
                                strict=True):
            node.number = number
        return sorted((*there, *came), key=lambda node: node.number)

    def _opened(self, nodes: Sequence[Node]) -> bool:
        """Wait until nodes are warm; False: one was lost meanwhile.

        Raises:
            TrialError: one cannot load its modules.
        """
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
        """Measure the links of a ring of all nodes.

        Raises:
            TrialError: nodes that have joined cannot talk to each other.
        """
        if self.nodes == 1:
            return
        with tempfile.TemporaryDirectory(prefix="repro-links-") as place:
            folder = Path(place)
            outcome = self._launch(LaunchRequest(entry=ENTRY, payload={}, processes=self.nodes, device="cpu",
                                                 folder=folder, timeout_seconds=LINKS_SECONDS), shared=False)
            if not outcome.ok:
                raise TrialError(f"the nodes cannot talk to each other: {outcome.failure_text()}; is a firewall "
                                 "between them? GLOO_SOCKET_IFNAME names the interface")
            self._links = json.loads((folder / LINKS).read_bytes())

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


ENTRY = f"{__name__}:measure_ring"
LINKS = "links.json"
PINGS = 20
SIZE, TRIES = 4 << 20, 3


def measure_ring(folder: str, payload: Mapping[str, Any]) -> None:
    """Measure all links of a ring of nodes; the entry point of one rank on each. Rank 0 writes `LINKS`.

    Latency is half the median of `PINGS` exchanges of 8 bytes; rate is the best of `TRIES` transfers of `SIZE` bytes,
    less one latency.
    """
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    small, large = torch.zeros(1, dtype=torch.int64), torch.zeros(SIZE, dtype=torch.uint8)
    found: list[dict[str, float]] = []
    for sender in range(world):
        receiver = (sender + 1) % world
        dist.barrier()
        if rank == sender:
            pings = [_exchange(dist, small, small, receiver) for _ in range(PINGS)]
            latency = statistics.median(pings) / 2
            transfers = [_exchange(dist, large, small, receiver) for _ in range(TRIES)]
            found.append({"sender": sender, "receiver": receiver, "latency_seconds": latency,
                          "bytes_per_second": SIZE / max(min(transfers) - 2 * latency, 1e-9)})
        elif rank == receiver:
            for what in (*[small] * PINGS, *[large] * TRIES):
                dist.recv(what, sender)
                dist.send(small, sender)
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
