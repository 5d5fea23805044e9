"""The computer where `repro run` runs: agents join it, and it tells each what to launch."""

from __future__ import annotations

import hashlib
import platform
import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import repro
from repro.core.errors import UsageError
from repro.launchers.nodes.channel import Arrivals, Channel, LinkLost, Message, WrongSecret, accept
from repro.launchers.processes.hang import ANSWER_SECONDS, Deadline, Stacks
from repro.launchers.processes.node_launch import NodeEnd
from repro.launchers.processes.rank import listen_at
from repro.launchers.processes.rank_processes import RankProcesses, RankReport
from repro.seams.launching import LaunchRequest

PACKAGES = ("torch", "deepspeed", "numpy")


def identity() -> dict[str, str]:
    """Return name -> version, the code of this package included."""
    return {"repro": repro.__version__, "code of repro": _code(), "Python": platform.python_version(),
            **{name: _version(name) for name in PACKAGES}}


def difference(there: Mapping[str, str], here: Mapping[str, str]) -> str:
    """Return what differs, in one line; "" if nothing does."""
    return ", ".join(f"{name} {there.get(name, 'none')} there and {here.get(name, 'none')} here"
                     for name in dict.fromkeys((*here, *there)) if there.get(name) != here.get(name))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


@cache
def _code() -> str:
    root, found = Path(repro.__file__).parent, hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        found.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


BEAT_SECONDS = 1.0
HELLO_SECONDS = 30.0
MOST_STRANGERS = 8
"""Addresses without the secret that a run names, a line each."""
MOST_GREETED = 64
"""Connections at a time that have not yet proved themselves."""


@dataclass(slots=True)
class Clock:
    """Difference of the monotonic clocks of two computers, from the fastest answer so far (Cristian, 1989)."""

    offset_ns: int = 0
    """There minus here."""
    wall_offset_ns: int = 0
    """The same of the wall clocks."""
    bound_ns: int | None = None
    """Half the time of that answer: the offset is right to this; None: no answer yet."""

    def take(self, sent: int, there: int, received: int, wall_ns: int = 0) -> None:
        """Take an answer: sent and received here, stamped there, in nanoseconds.

        Args:
            wall_ns: wall clock there minus that of here when the answer was received.
        """
        half = (received - sent) // 2
        if self.bound_ns is None or half < self.bound_ns:
            self.offset_ns, self.bound_ns = there - (sent + half), half
            self.wall_offset_ns = wall_ns + half


@dataclass(slots=True)
class Node:
    """A node that has joined; its messages are read by a thread."""

    channel: Channel
    host: str
    pid: int
    description: Mapping[str, Any]
    start: str = ""
    """Host on which the run has started its agent; "": a user has."""
    number: int = 0
    """Place among the nodes of the run; 0 is the head itself."""
    clock: Clock = field(default_factory=Clock)
    inbox: queue.Queue[Message] = field(default_factory=queue.Queue)
    stacks: queue.Queue[dict[int, list[tuple[str, str]]]] = field(default_factory=queue.Queue)
    ready: bool = False
    """It has loaded its modules."""
    lost: str = ""
    """Why it is gone; "" while it is there."""

    @property
    def name(self) -> str:
        return f"node {self.number} ({self.host})"

    def send(self, kind: str, content: Mapping[str, Any] | None = None) -> None:
        """Send a message; a node that cannot be reached is lost."""
        if not self.lost:
            try:
                self.channel.send(kind, content)
            except LinkLost as error:
                self.leave(str(error))

    def leave(self, why: str) -> None:
        self.lost = self.lost or why
        self.channel.close()

    def read(self) -> None:
        """Read until the node is gone; the main function of its thread."""
        try:
            while True:
                message = self.channel.receive()
                if message.kind == "beat":
                    told, now = message.content, time.monotonic_ns()
                    self.clock.take(told["sent"], told["own"], now, told["wall"] - time.time_ns())
                elif message.kind == "stacks":
                    self.stacks.put({int(rank): [(file, name) for file, name in frames]
                                     for rank, frames in message.content["stacks"].items()})
                else:
                    self.inbox.put(message)
        except LinkLost as error:
            self.leave(str(error))
        except (KeyError, TypeError, ValueError) as error:
            self.leave(f"a message that is not understood: {error!r}")

    def answer(self, seconds: float) -> Message | None:
        """Wait for the next message; None: the node is lost, or silent for so long."""
        until = time.monotonic() + seconds
        while True:
            with suppress(queue.Empty):
                return self.inbox.get(timeout=min(seconds, 0.02) or None, block=seconds > 0)
            if time.monotonic() >= until or (self.lost and self.inbox.empty()):
                return None


class Head:
    """Listens for agents, and keeps those that hold the secret and run the same code."""

    def __init__(
        self, host: str, port: int, secret: bytes, silence_seconds: float, tell: Callable[[str], None] = lambda _: None
    ) -> None:
        """
        Args:
            silence_seconds: after this time without a word a node is lost.
            tell: is given why an agent was refused.

        Raises:
            UsageError: the address is in use, or none of this computer.
        """
        self._secret, self._silence = secret, silence_seconds
        self._identity = identity()  # now: strangers may leave no file to open
        self._joined: queue.Queue[Node] = queue.Queue()
        self._tell = tell
        self.refused = ""
        """Why the last agent was refused or lost; "" if none was."""
        self._strangers: set[str] = set()
        """Addresses of which the run has told that they did not prove the secret."""
        self.nodes: list[Node] = []
        self._over = threading.Event()
        self._greeted: deque[socket.socket] = deque()
        """Connections that have not yet proved themselves, the oldest first."""
        try:
            self._server = listen_at(host, port)
        except OSError as error:
            raise UsageError(f"{host}:{port} cannot be listened on: {error.strerror}; set "
                             "REPRO_LISTEN=HOST:PORT") from error
        self.port = int(self._server.getsockname()[1])
        threading.Thread(target=self._accept, name="repro-head", daemon=True).start()
        threading.Thread(target=self._beat, name="repro-beat", daemon=True).start()

    def join(self, seconds: float, going_on: Callable[[], bool] = lambda: True) -> Node | None:
        """Return the next node that has joined; None: there was none for so long, or `going_on` returned False.

        Of two agents that the run has started on one host, the second is sent away: the first had lost the run only.
        """
        until = time.monotonic() + seconds
        while time.monotonic() < until and going_on():
            with suppress(queue.Empty):
                node = self._joined.get(timeout=0.05)
                if node.start in self.started:
                    node.send("close")
                    node.leave("another agent of its host is here")
                if not node.lost:
                    node.channel.patience(self._silence)
                    self.nodes = [*(item for item in self.nodes if not item.lost), node]
                    return node
        return None

    @property
    def started(self) -> set[str]:
        """Return the hosts on which the run has started an agent that is here."""
        return {node.start for node in self.nodes if node.start and not node.lost}

    def close(self) -> None:
        """End the run for all nodes, and listen no more."""
        self._over.set()
        with suppress(queue.Empty):
            while True:  # those that joined and were not needed
                self.nodes.append(self._joined.get_nowait())
        for node in self.nodes:
            node.send("close")
            node.leave("the run is over")
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _accept(self) -> None:
        while not self._over.is_set():
            try:
                link, _ = self._server.accept()
            except OSError:  # no file is left, say: strangers must not end the joining of the others
                self._drop_oldest()
                self._over.wait(0.01)
                continue
            self._greeted.append(link)
            if len(self._greeted) > MOST_GREETED:
                self._drop_oldest()
            try:
                threading.Thread(target=self._greet, args=(link,), name="repro-greet", daemon=True).start()
            except RuntimeError:  # no thread is left
                self._forget(link)
                link.close()

    def _drop_oldest(self) -> None:
        """End the oldest connection that has not proved itself: an honest agent needs milliseconds."""
        with suppress(IndexError, OSError):
            self._greeted.popleft().shutdown(socket.SHUT_RDWR)

    def _forget(self, link: socket.socket) -> None:
        with suppress(ValueError):
            self._greeted.remove(link)

    def _greet(self, link: socket.socket) -> None:
        """Let a peer prove itself; one that cannot is dropped without a word."""
        try:
            channel = accept(link, self._secret)
            self._forget(link)
            channel.patience(HELLO_SECONDS)
            hello = channel.receive().content
        except LinkLost as error:
            self._forget(link)
            if isinstance(error, WrongSecret):
                self._unproved(error.peer)
            link.close()
            return
        try:
            host = str(hello["host"])
            node = Node(channel, host, int(hello["pid"]), dict(hello["description"]), str(hello.get("start", "")))
            problem = difference(dict(hello["identity"]), self._identity)
        except (KeyError, TypeError, ValueError) as error:
            self._refuse(f"an agent at {channel.peer_address} has the secret and another language: {error!r}; "
                         "install the same version of repro there")
            channel.close()
            return
        if problem:
            reason = f"{host} cannot take part: {problem}; install the same there"
            node.send("refused", {"reason": reason})
            node.leave(reason)
            self._refuse(reason)
            return
        threading.Thread(target=node.read, name=f"repro-node-{host}", daemon=True).start()
        self._joined.put(node)

    def _unproved(self, peer: str) -> None:
        """Tell once of each of the first addresses, however many come."""
        text = (f"a peer at {peer} did not prove that it holds the secret of this run: an agent with another "
                "REPRO_SECRET or ~/.config/repro/secret, or a stranger")
        if peer not in self._strangers and len(self._strangers) < MOST_STRANGERS:
            self._strangers.add(peer)
            self._refuse(text)
        self.refused = text

    def _refuse(self, reason: str) -> None:
        """Tell why an agent is refused; the run goes on waiting for another."""
        if reason != self.refused:  # an agent may try again and again
            self._tell(f"refused: {reason}")
        self.refused = reason

    def _beat(self) -> None:
        while not self._over.wait(BEAT_SECONDS):
            for node in self.nodes:
                node.send("beat", {"sent": time.monotonic_ns()})


LOGS = "rank*.log"
"""What ranks print, by name: attempts of one trial print into the same file, also on a node that is new."""
LAST_WORDS_SECONDS = 30.0
"""Longest silence of a node between the end here and its own."""


class NodeWatch(Deadline):
    """The deadline of a launch on several nodes, which also ends when another node is lost or its ranks have failed."""

    period = 0.05

    def __init__(self, request: LaunchRequest, nodes: Sequence[Node], number: int) -> None:
        super().__init__(request)
        self._nodes, self._number = nodes, number
        self._arrivals = {node.number: Arrivals(request.folder, LOGS) for node in nodes}
        self._ended: dict[int, Message] = {}
        """Last message of each node whose ranks have ended."""

    def end_of(self, node: Node, processes: int) -> NodeEnd:
        """Wait until the `processes` ranks of a node have ended and its files have arrived; return how they ended."""
        last = self._last_message(node, LAST_WORDS_SECONDS)
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

    def _last_message(self, node: Node, seconds: float) -> Message | None:
        """Return the last message of a node, and write the files that come before it; None: none came for so long."""
        while node.number not in self._ended and (message := node.answer(seconds)) is not None:
            self._take(node, message)
        return self._ended.get(node.number)

    def _failed_elsewhere(self) -> bool:
        return any(self._has_failed(node) for node in self._nodes)

    def _has_failed(self, node: Node) -> bool:
        if (last := self._last_message(node, 0)) is None:
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
