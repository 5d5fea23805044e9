"""Lanes on computers without a scheduler or a shared folder: agents that have joined, each with a shard at a time.

A shard's files go to its agent before it begins and come back when it has ended; its ledger comes as it grows, so that
the record knows what a lost lane had begun. This process trains nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from repro.core.errors import TrialError
from repro.core.files import write_text
from repro.launchers.nodes.agent_lane import OUTPUT
from repro.launchers.nodes.channel import Arrivals, LinkLost, files_below, send_files
from repro.launchers.nodes.head import Head, Node
from repro.launchers.nodes.hosts import Starts, key_of, listen, read_secret
from repro.record.folder.shards import ASSIGNED
from repro.record.folder.store import RunFolder
from repro.runner.pool.coordinator import Engine

SILENCE_SECONDS = 15.0
JOIN_SECONDS = 300.0
"""Longest time without any agent while blocks wait."""
FROM_POOL = ("plan.json", "suite.yaml", "environment.json", "parity.json", "solo/environment.json", "solo/parity.json")


@dataclass(slots=True)
class AgentLanes(Engine):
    """One lane for each agent, up to the declared number; agents may join and leave at any time."""

    folder: RunFolder
    lanes: int
    flags: Sequence[str]
    """Of every lane's command."""
    tell: Callable[[str], None]
    period_seconds: float = 0.2
    _head: Head = field(init=False)
    _starts: Starts = field(default_factory=Starts, init=False)
    _busy: dict[int, tuple[Node, Arrivals]] = field(default_factory=dict, init=False)
    """Shard -> the node that runs it, and its files."""
    _ran: dict[int, Node] = field(default_factory=dict, init=False)
    """The same of all shards that were started."""
    _avoided: list[Node] = field(default_factory=list, init=False)
    """Nodes that get no shard while others are there."""
    _seen: float = field(init=False)
    """When an agent was there last."""

    def __post_init__(self) -> None:
        """
        Raises:
            UsageError: the address is in use, or there is no secret.
        """
        host, port = listen()
        text = read_secret(make=True)
        self._seen = time.monotonic()
        self._head = Head(host, port, key_of(text), SILENCE_SECONDS, self.tell)
        try:
            self._starts.start_named(self.lanes, self._head.port, text, JOIN_SECONDS)
        except BaseException:
            self.close()
            raise
        if not self._starts.any:
            self.tell(f"lanes are agents; on each: repro agent --join {host or os.uname().nodename}:{self._head.port}")

    def close(self) -> None:
        """End the run for all agents."""
        self._head.close()
        self._starts.close(SILENCE_SECONDS)

    def room(self) -> int:
        """
        Raises:
            TrialError: no agent was there for a long time, or those that were started end again and again.
        """
        return min(self.lanes - len(self._busy), len(self._free()))

    def start(self, shards: Sequence[int]) -> None:
        for shard, node in zip(shards, self._free(), strict=False):
            self._ran[shard], self._busy[shard] = node, (node, Arrivals(self.folder.shards / str(shard)))
            root = self.folder.root
            names = [name for name in FROM_POOL if (root / name).is_file()]
            names += [f"code/{name}" for name in files_below(self.folder.code)]
            try:
                send_files(node.channel, shard, root, [*names, f"shards/{shard}/{ASSIGNED}"])
            except LinkLost as error:
                node.leave(str(error))
            node.send("shard", {"number": shard, "flags": list(self.flags)})

    def running(self) -> set[int] | None:
        for shard, (node, arrivals) in list(self._busy.items()):
            while shard in self._busy and (message := node.answer(0)) is not None:
                if message.content.get("number") != shard:
                    continue
                if message.kind == "shard ended":
                    del self._busy[shard]
                    self._starts.forgive()
                    break
                try:
                    arrivals.take(message)
                except LinkLost as error:
                    node.leave(str(error))
            if shard in self._busy and node.lost and node.inbox.empty():
                del self._busy[shard]
                write_text(self.said(shard), f"{node.host} was lost: {node.lost}\n")
        return set(self._busy)

    def avoid(self, shard: int) -> bool:
        node = self._ran.get(shard)
        if node is None or node.lost or not any(item not in (node, *self._avoided) for item in self._there()):
            return False
        if node not in self._avoided:
            self._avoided.append(node)
            self.tell(f"lane {node.host} ended shard {shard} before its first trial, and gets no other")
        return True

    def cancel(self) -> None:
        for shard, (node, _) in self._busy.items():
            node.send("stop", {"number": shard})

    def said(self, shard: int) -> Path:
        return self.folder.shards / str(shard) / OUTPUT

    def _free(self) -> list[Node]:
        """Return the agents that have no shard, after those that have joined since; raise what `room` does."""
        while (node := self._head.join(0.01)) is not None:
            node.send("pool", {"silence_seconds": SILENCE_SECONDS})
            self.tell(f"lane {node.host} has joined")
        there, now = self._there(), time.monotonic()
        self._seen = now if there else self._seen
        if not self._starts.revive(self._head.started, self.tell) and not there:
            raise TrialError(f"no lane is there: {self._starts.problem}")
        if now - self._seen > JOIN_SECONDS:
            raise TrialError(f"no agent was there for {JOIN_SECONDS:g} s; --resume RUN waits again")
        busy = [node for node, _ in self._busy.values()]
        usable = [node for node in there if node not in self._avoided] or there  # the others have left
        return [node for node in usable if node not in busy]

    def _there(self) -> list[Node]:
        return [node for node in self._head.nodes if not node.lost]
