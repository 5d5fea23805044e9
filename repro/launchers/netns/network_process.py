"""Process that holds an emulated network for a run: forked from the warm server, controlled over a pipe.

An ordinary user's namespaces can be built and read only from inside their user namespace, which a process with threads
cannot enter. The process ends with the launching process, and the network with it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import threading
import time
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

from repro.core import orphans
from repro.core.errors import TrialError
from repro.launchers.netns import namespaces
from repro.launchers.netns.network import FRAME_BYTES, EmulatedNetwork, NetworkSpec
from repro.launchers.processes.rank_processes import reason

SECONDS = 0.12
FRAMES = 40
"""Fewest frames of a transfer: a slow link needs longer for the same precision."""
LONGEST = 2.0
TRIES, ENOUGH = 3, 0.97
"""A transfer below this share of the stated rate was slowed by the machine, not by the link: it is repeated and the
best is kept. A link cannot be faster than its shaped rate."""


def measure(network: EmulatedNetwork) -> list[dict[str, float]]:
    """Measure from every node to the next, and from the last to the first, one at a time: each link in both directions.

    Each has sender, receiver, stated_bits_per_second (the lower of both ends) and measured_bits_per_second.
    """
    count, found = len(network.nodes), list[dict[str, float]]()
    for sender in range(count if count > 1 else 0):
        receiver = (sender + 1) % count
        stated, best = min(network.spec.rate(sender), network.spec.rate(receiver)), 0.0
        for _ in range(TRIES):
            if best < ENOUGH * stated:
                best = max(best, _measure(network, sender, receiver, stated))
        found.append({"sender": sender, "receiver": receiver, "stated_bits_per_second": stated,
                      "measured_bits_per_second": best})
    return found


def _measure(network: EmulatedNetwork, sender: int, receiver: int, stated: float) -> float:
    """Return the payload rate of one TCP stream, bits per second, without its start."""
    seconds = min(LONGEST, max(SECONDS, FRAMES * FRAME_BYTES * 8 / stated))
    source, sink = _connection(network, sender, receiver)
    thread = threading.Thread(target=_send, args=(source,), name="repro-link-test", daemon=True)
    thread.start()
    try:
        return _receive(sink, seconds)
    finally:
        sink.close()
        # Ends a send that is not read any more.
        with contextlib.suppress(OSError):
            source.shutdown(socket.SHUT_RDWR)
        thread.join()
        source.close()


def _connection(network: EmulatedNetwork, sender: int, receiver: int) -> tuple[socket.socket, socket.socket]:
    with namespaces.inside(network.nodes[receiver]):
        server = socket.create_server((network.spec.address(receiver), 0))
    with server:
        server.settimeout(10)
        with namespaces.inside(network.nodes[sender]):
            # The kernel establishes a connection before it is accepted.
            source = socket.create_connection(server.getsockname(), timeout=10)
        sink, _ = server.accept()
    sink.settimeout(10)
    source.settimeout(None)
    return source, sink


def _send(source: socket.socket) -> None:
    block = bytes(1 << 18)
    with contextlib.suppress(OSError):
        while True:
            source.sendall(block)


def _receive(sink: socket.socket, seconds: float) -> float:
    """Return bits per second, from the first arrival after a quarter of the time to the last arrival."""
    buffer, begin = bytearray(1 << 20), time.perf_counter()
    first, last, received = 0.0, 0.0, 0
    while last < begin + 1.25 * seconds or not received:  # on a busy machine the first arrival may come after that
        count = sink.recv_into(buffer)
        last = time.perf_counter()
        if first:
            received += count
        elif last > begin + 0.25 * seconds:
            first = last
    return received * 8 / (last - first)


ANSWER_SECONDS = 120.0


class NetworkProcess:
    """Launching process's handle of the network process; every method is one request and waits for the answer.

    Raises:
        TrialError: the network cannot be built, or its process has ended.
    """

    def __init__(self, spec: NetworkSpec) -> None:
        context = multiprocessing.get_context("forkserver")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, spec), name="repro-network", daemon=True)
        self.user: int | None = None
        """Open file of the user namespace that all others belong to; None as root."""
        self.nodes: list[int] = []
        """Open file of each node's network namespace."""
        self.congestion_control = ""
        """Of the nodes' TCP, as their kernel says."""
        self._process.start()
        theirs.close()
        try:
            if self._ask("build"):
                self.user = self._file()
        except BaseException:
            # Ctrl-C too: the process must not stay without an owner.
            self.close()
            raise

    @property
    def alive(self) -> bool:
        """False if the process was killed; a new one is needed then."""
        return self._process.is_alive()

    def grow(self, count: int) -> list[dict[str, float]]:
        """Grow to at least `count` nodes; return new measurements of every link if nodes were added, else an empty
        list.
        """
        new = max(0, count - len(self.nodes))
        if not new:
            return []
        self.congestion_control = str(self._ask("grow", count))
        self.nodes += [self._file() for _ in range(new)]
        links: list[dict[str, float]] = self._ask("measure")
        return links

    def store(self) -> int:
        """Open a new store on the control network, closing the previous one, and return its port."""
        return int(self._ask("store"))

    def traffic(self) -> list[dict[str, int]]:
        """Return the interface counters by node."""
        found: list[dict[str, int]] = self._ask("traffic")
        return found

    def close(self) -> None:
        """End the process and close the namespaces, which are removed when the last rank has ended."""
        self._pipe.close()
        if self._process.pid is not None:
            self._process.kill()
            self._process.join()
        for file in (*self.nodes, *([] if self.user is None else [self.user])):
            os.close(file)
        self.nodes, self.user = [], None

    def _file(self) -> int:
        """Receive an open file that follows an answer."""
        try:
            return recv_handle(self._pipe)
        except (EOFError, OSError, RuntimeError) as error:
            raise TrialError(f"the emulated network's namespaces could not be received: {reason(error)}") from None

    def _ask(self, request: str, *details: Any) -> Any:
        try:
            self._pipe.send((request, details))
            if not self._pipe.poll(ANSWER_SECONDS):
                raise TrialError(f"the emulated network did not answer {request!r} within {ANSWER_SECONDS:g} s")
            fine, answer = self._pipe.recv()
        except (EOFError, OSError):
            raise TrialError("the process that holds the emulated network has ended; it may have been killed") from None
        if not fine:
            raise TrialError(f"emulated network: {answer}")
        return answer


def _serve(pipe: Connection, spec: NetworkSpec) -> None:
    """Answer requests until the pipe closes; the main function of the process."""
    os.setpgid(0, 0)  # only the launching process handles Ctrl-C in a terminal
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    network = EmulatedNetwork(spec)
    service = _Service(network)
    # A closed pipe ends the process silently: no reader is left.
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            request, details = pipe.recv()
            try:
                answer, files = getattr(service, request)(*details)
            except Exception as error:
                # Any error of the network (netlink, OSError, torch's store) is sent as the answer.
                pipe.send((False, f"cannot {network.step}: {reason(error)}"))
                return
            pipe.send((True, answer))
            for file in files:
                send_handle(pipe, file, None)


class _Service:
    """Requests that the network process answers, one per method: the answer, and open files that follow it."""

    def __init__(self, network: EmulatedNetwork) -> None:
        self._network = network
        self._store: Any = None

    def build(self) -> tuple[bool, list[int]]:
        """Build the network; return True if a user namespace was needed, whose file then follows."""
        self._network.build()
        # A change of credentials has reset it in the kernel.
        orphans.signal_at_parent_exit(signal.SIGKILL)
        user = self._network.user
        return user is not None, [] if user is None else [user]

    def grow(self, count: int) -> tuple[str, list[int]]:
        """Add nodes, whose namespaces' files follow; return the congestion control of their TCP."""
        known = len(self._network.nodes)
        self._network.grow(count)
        return self._network.congestion_control, self._network.nodes[known:]

    def measure(self) -> tuple[list[dict[str, float]], list[int]]:
        self._network.step = "measure the links"
        return measure(self._network), []

    def traffic(self) -> tuple[list[dict[str, int]], list[int]]:
        self._network.step = "read the interface counters"
        return self._network.traffic(), []

    def store(self) -> tuple[int, list[int]]:
        from repro.launchers.processes.fixed_nodes import bind_store

        self._network.step = "open a store on the control network"
        self._store = None  # first, to free the port and thread of the old store
        self._store = bind_store(self._network.spec.control_address)
        return int(self._store.port), []
