"""The agent of a node: joins the computer where `repro run` runs, launches this node's ranks for it, or runs whole
shards of a pool, and reports."""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from repro.core.errors import ReproError, TrialError, UsageError
from repro.launchers.nodes.agent_lane import Lane
from repro.launchers.nodes.channel import (
    Arrivals,
    Channel,
    LinkLost,
    Message,
    changed_files,
    connect,
    file_state,
    send_files,
)
from repro.launchers.nodes.head import LOGS, identity
from repro.launchers.processes import fork_server, hang
from repro.launchers.processes.fork_server import WarmServer
from repro.launchers.processes.node_launch import NodeEnd, NodeLaunch, interface_of
from repro.launchers.processes.rank import Assignment, Membership
from repro.launchers.processes.rank_processes import RankProcesses

RETRY_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch as the head describes it."""

    number: int
    entry: str
    payload: dict[str, Any]
    folder: str
    """Folder of the ranks' output, below the run's folder if that is not shared."""
    first: int
    """First rank of this node."""
    processes: int
    """Ranks of this node."""
    node: int
    nodes: int
    port: int
    """Of the store."""
    prefix: str
    environment: dict[str, str]
    expendable: tuple[int, ...]
    probe: str
    """A file that is visible here if the run's folder is shared; "" if it is said not to be."""
    root: str
    """The run's folder on the head; paths of the payload that begin with it are below a folder of this node here."""
    monitor_seconds: float
    grace_seconds: int


def serve(
    host: str, port: int, secret: bytes, describe: Callable[[], Mapping[str, Any]], tell: Callable[[str], None],
    wait_seconds: float, start: str = "",
) -> bool:
    """Take part in one run until it ends; return False if none was reached for `wait_seconds`.

    A run that is lost is waited for again, so that `repro run --resume` finds this node.

    Args:
        describe: returns what the record keeps of this node (JSON-like).
        tell: is given lines for the user.
        start: name by which the run has started this agent; "": a user has.

    Raises:
        UsageError: the run refuses this node.
    """
    until, told = time.monotonic() + wait_seconds, ""
    while True:
        try:
            channel = connect(host, port, secret)
        except LinkLost as error:
            if (text := f"{host}:{port}: {error}; trying again") != told:
                tell(text)
                told = text
            if time.monotonic() > until:
                return False
            time.sleep(RETRY_SECONDS)
            continue
        tell(f"joined the run at {host}:{port}")
        try:
            with closing(_Session(channel)) as session:
                session.run(describe(), start)
                return True
        except LinkLost as error:
            tell(f"lost the run: {error}")
        until, told = time.monotonic() + wait_seconds, ""


class _Session:
    """One connection to a run. The main thread launches; another one reads, answers and stops launches."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._orders: queue.Queue[Message | None] = queue.Queue()
        self._stop, self._lost, self._over, self._ranks = threading.Event(), "", False, RankProcesses()
        self._launch: Launch | None = None
        self._folder = Path()
        self._server: WarmServer | None = None
        self._root = Path()
        """Takes the place of the run's folder, unless that is shared; below the fork server's, which later processes
        remove if this one is killed."""
        self._arrivals = Arrivals(self._root)
        self._lane: Lane | None = None
        """Of a pool, instead of a fork server."""

    def close(self) -> None:
        self._channel.close()
        if self._lane is not None:
            self._lane.close()
        if self._server is not None:
            fork_server.release(self._server)

    def run(self, description: Mapping[str, Any], start: str) -> None:
        """Serve until the head closes.

        Raises:
            LinkLost: the head is gone.
            UsageError: it refuses this node.
        """
        self._channel.send("hello", {"identity": identity(), "host": socket.gethostname(), "pid": os.getpid(),
                                     "description": dict(description), "start": start})
        self._channel.patience(60.0)
        threading.Thread(target=self._read, name="repro-agent", daemon=True).start()
        try:
            self._follow()
        except LinkLost:
            if not self._over:
                raise

    def _follow(self) -> None:
        """Carry out orders until the run is over."""
        while (message := self._orders.get()) is not None:
            if message.kind == "refused":
                raise UsageError(str(message.content["reason"]))
            if message.kind == "open":
                self._open(message.content)
            elif message.kind == "pool":
                self._channel.patience(float(message.content["silence_seconds"]))
                self._lane = self._lane or Lane(self._channel, self._stop)
                self._arrivals = Arrivals(self._lane.root)
            elif message.kind == "shard" and self._lane is not None:
                self._stop.clear()
                if self._lost or self._over:  # since the shard was asked for
                    self._stop.set()
                self._lane.run(**message.content)
            elif message.kind == "launch":
                self._carry_out(Launch(**message.content))
            else:
                self._arrivals.take(message)
        raise LinkLost(self._lost or "the run is over")

    def _read(self) -> None:
        """Answer what must not wait for the main thread, and pass on the rest."""
        try:
            while True:
                message = self._channel.receive()
                if message.kind == "beat":
                    self._channel.send("beat", {**message.content, "own": time.monotonic_ns(), "wall": time.time_ns()})
                elif message.kind == "stop":
                    if self._lane is not None or (
                            self._launch is not None and self._launch.number == message.content["number"]):
                        self._stop.set()
                elif message.kind == "stacks":
                    self._answer_stacks()
                elif message.kind == "close":
                    self._over = True
                    self._stop.set()
                    self._orders.put(None)
                else:
                    self._orders.put(message)
        except LinkLost as error:
            self._lost = str(error)
            self._stop.set()
            self._orders.put(None)

    def _open(self, wanted: Mapping[str, Any]) -> None:
        self._channel.patience(float(wanted["silence_seconds"]))
        try:
            if self._server is None:
                self._server = fork_server.acquire(wanted["preload"], wanted["device"])
                self._root = Path(self._server.folder) / "run"
                self._root.mkdir()
                self._arrivals = Arrivals(self._root)
            self._channel.send("opened", {"seconds": self._server.seconds})
        except ReproError as error:
            self._channel.send("unable", {"reason": str(error)})

    def _answer_stacks(self) -> None:
        launch = self._launch
        if launch is not None:
            found = hang.ask(self._ranks.pids(), self._folder, launch.first)
            self._channel.send("stacks", {"stacks": {str(rank): frames for rank, frames in found.items()}})

    def _carry_out(self, launch: Launch) -> None:
        assert self._server is not None, "a launch comes after open"
        if launch.probe and not Path(launch.probe).exists():
            self._channel.send("unable", {"number": launch.number, "reason":
                                          f"does not see {launch.root}: it is not shared; leave out launcher.shared"})
            return
        root = Path(launch.root) if launch.probe else self._root
        self._folder = root / launch.folder
        self._folder.mkdir(parents=True, exist_ok=True)
        for log in self._folder.glob(LOGS) if not launch.probe else ():
            log.unlink()  # of an earlier launch; the run has them, and adds those of this one
        before = file_state(self._folder)
        self._stop.clear()
        self._launch = launch
        if self._lost or self._over:  # since the launch was asked for
            self._stop.set()
        try:
            found = self._ranks_end(launch, root)
        except TrialError as error:
            self._channel.send("unable", {"number": launch.number, "reason": str(error)})
            return
        finally:
            self._launch = None
        if not launch.probe:
            send_files(self._channel, launch.number, self._folder, changed_files(self._folder, before))
        self._channel.send("ended", {
            "number": launch.number, "codes": found.codes, "killed": found.killed, "suspect": found.suspect,
            "reports": [asdict(report) for report in found.reports]})

    def _ranks_end(self, launch: Launch, root: Path) -> NodeEnd:
        assert self._server is not None
        self._server.revive()
        payload = launch.payload if launch.probe else moved(launch.payload, launch.root, str(root))
        work = Assignment(launch.entry, payload, str(self._folder),
                          {**launch.environment, **interface_of(self._channel.own_address)}, launch.expendable)
        members = Membership(launch.node, launch.nodes, self._channel.peer_address, launch.port, prefix=launch.prefix)
        return NodeLaunch(work, launch.processes, None, members, launch.monitor_seconds, launch.grace_seconds
                          ).carry_out(self._in_time, self._server.folder)

    def _in_time(self, ranks: RankProcesses, done: threading.Event) -> bool:
        self._ranks = ranks
        while not done.wait(0.02):
            if self._stop.is_set():
                return False
        return True


def moved(content: Any, root: str, to: str) -> Any:
    """Return JSON-like content with every path below `root` replaced by the one below `to`."""
    if isinstance(content, str):
        return to + content[len(root) :] if content == root or content.startswith(root + os.sep) else content
    if isinstance(content, list):
        return [moved(item, root, to) for item in content]
    return {key: moved(item, root, to) for key, item in content.items()} if isinstance(content, dict) else content
