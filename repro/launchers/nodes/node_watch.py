"""What node 0 watches while a launch runs on several nodes."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from repro.launchers.nodes import files
from repro.launchers.nodes.channel import LinkLost, Message
from repro.launchers.nodes.head import Node
from repro.launchers.processes.hang import ANSWER_SECONDS, Deadline, Stacks
from repro.launchers.processes.node_launch import NodeEnd
from repro.launchers.processes.rank_processes import RankProcesses, RankReport
from repro.seams.launching import LaunchRequest

LAST_WORDS_SECONDS = 30.0
"""Longest silence of a node between the end here and its own."""


class NodeWatch(Deadline):
    """The deadline of a launch on several nodes, which also ends when another node is lost or its ranks have failed."""

    period = 0.05

    def __init__(self, request: LaunchRequest, nodes: Sequence[Node], number: int) -> None:
        super().__init__(request)
        self._nodes, self._number = nodes, number
        self._arrivals = {node.number: files.Arrivals(request.folder) for node in nodes}
        self._ended: dict[int, Message] = {}
        """Last message of each node whose ranks have ended."""

    def end_of(self, node: Node, processes: int) -> NodeEnd:
        """Wait until the `processes` ranks of a node have ended and its files have arrived; return how they ended."""
        last = self._last_message(node)
        if last is None or last.kind == "unable":
            if last is None:
                node.leave(f"no word for {LAST_WORDS_SECONDS:g} s after the end here")
            why = f"{node.name} was lost: {node.lost}" if last is None else f"{node.name}: {last.content['reason']}"
            # Earlier than all others, which have failed because of it.
            return NodeEnd([1] * processes, [RankReport(why, "failed", 1)] * processes, [False] * processes, None)
        found = last.content
        reports = [RankReport(**item) for item in found["reports"]]
        return NodeEnd(
            found["codes"],
            [replace(item, nanoseconds=item.nanoseconds - node.clock.offset_ns) if item.reason else item
             for item in reports], found["killed"], found["suspect"])

    def _last_message(self, node: Node) -> Message | None:
        """Wait for the last message of a node, and write the files that come before it; None: the node is lost."""
        while node.number not in self._ended:
            message = node.answer(LAST_WORDS_SECONDS)
            if message is None:
                return None
            self._take(node, message)
        return self._ended[node.number]

    def _failed_elsewhere(self) -> bool:
        return any(self._has_failed(node) for node in self._nodes)

    def _has_failed(self, node: Node) -> bool:
        while node.number not in self._ended and (message := node.next_message()) is not None:
            self._take(node, message)
        last = self._ended.get(node.number)
        if last is None:
            return bool(node.lost)
        return last.kind == "unable" or any(code != 0 for code in last.content["codes"])

    def _take(self, node: Node, message: Message) -> None:
        if message.content.get("number") != self._number:
            return  # of a launch that was interrupted
        if message.kind in ("ended", "unable"):
            self._ended[node.number] = message
        else:
            try:
                self._arrivals[node.number].take(message)
            except LinkLost as error:
                node.leave(str(error))

    def _ask(self, ranks: RankProcesses) -> Stacks:
        for node in self._nodes:
            node.send("stacks")
        found = super()._ask(ranks)
        for node in self._nodes:
            with suppress(queue.Empty):
                found |= node.stacks.get(timeout=2 * ANSWER_SECONDS)
        return found
