"""The process that holds an emulated network for a run: forked from the warm server, told what to do over a pipe.

It exists because an ordinary user's namespaces can be built and looked into only from inside their user namespace,
which a process with threads cannot enter. It ends with the launching process, and everything it holds with it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

from repro.core import child_process
from repro.core.errors import TrialError
from repro.launchers.netns.link_probe import Link, measure
from repro.launchers.netns.network import Network, Traffic, Wiring
from repro.launchers.processes.entry import reason

ANSWER_SECONDS = 120.0


class Keeper:
    """The launching process's end: every method is one question, answered before it returns.

    Raises:
        TrialError: the network cannot be built, or the keeper is gone.
    """

    def __init__(self, wiring: Wiring) -> None:
        context = multiprocessing.get_context("forkserver")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, wiring), name="repro-keeper", daemon=True)
        self.user: int | None = None
        """An open file of the user namespace that all others belong to; None as root."""
        self.nodes: list[int] = []
        """An open file of each node's network namespace."""
        self._process.start()
        theirs.close()
        try:
            if self._ask("build"):
                self.user = self._file()
        except BaseException:
            # Ctrl-C too: no process may be left that nobody holds.
            self.close()
            raise

    @property
    def alive(self) -> bool:
        """False: it was killed; only a new one can help."""
        return self._process.is_alive()

    def grow(self, count: int) -> list[Link]:
        """Have at least `count` nodes; where that took new ones, every link measured."""
        new = max(0, count - len(self.nodes))
        if not new:
            return []
        self._ask("grow", count)
        self.nodes += [self._file() for _ in range(new)]
        links: list[Link] = self._ask("measure")
        return links

    def store(self) -> int:
        """The port of a fresh store on the control network; the one before is closed."""
        return int(self._ask("store"))

    def traffic(self) -> list[Traffic]:
        """The interface counters by node."""
        found: list[Traffic] = self._ask("traffic")
        return found

    def close(self) -> None:
        """End the keeper and let go of the namespaces: they are gone when the last rank is."""
        self._pipe.close()
        if self._process.pid is not None:
            self._process.kill()
            self._process.join()
        for file in (*self.nodes, *([] if self.user is None else [self.user])):
            os.close(file)
        self.nodes, self.user = [], None

    def _file(self) -> int:
        """An open file that follows an answer."""
        try:
            return recv_handle(self._pipe)
        except (EOFError, OSError, RuntimeError) as error:
            raise TrialError(f"the emulated network's namespaces could not be handed over: {reason(error)}") from None

    def _ask(self, question: str, *details: Any) -> Any:
        try:
            self._pipe.send((question, details))
            if not self._pipe.poll(ANSWER_SECONDS):
                raise TrialError(f"the emulated network gave no answer to {question!r} for {ANSWER_SECONDS:g} s")
            fine, answer = self._pipe.recv()
        except (EOFError, OSError):
            raise TrialError("the process that keeps the emulated network has ended; killed by hand?") from None
        if not fine:
            raise TrialError(f"emulated network: {answer}")
        return answer


def _serve(pipe: Connection, wiring: Wiring) -> None:
    """The keeper's own life: answer until the pipe closes."""
    os.setpgid(0, 0)  # Ctrl-C in a terminal is the launching process's business
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    network = Network(wiring)
    service = _Service(network, pipe)
    # Only a pipe that closes ends it in silence: then nobody is left to be told.
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            question, details = pipe.recv()
            try:
                answer = getattr(service, question)(*details)
            except Exception as error:
                # Anything that building or asking a network raises (netlink, OSError, torch's store) is the answer.
                pipe.send((False, f"cannot {network.step}: {reason(error)}"))
                return
            pipe.send((True, answer))
            service.hand_over()


class _Service:
    """What the keeper can be asked; each method is one question."""

    def __init__(self, network: Network, pipe: Connection) -> None:
        self._network, self._pipe = network, pipe
        self._store: Any = None
        self._due: list[int] = []
        self._over: Callable[[int], None] = lambda file: send_handle(pipe, file, None)

    def build(self) -> bool:
        """Whether a user namespace was needed, which then follows."""
        self._network.build()
        # A change of credentials has made the kernel forget it.
        child_process.at_its_end(signal.SIGKILL)
        self._due = [] if self._network.user is None else [self._network.user]
        return self._network.user is not None

    def grow(self, count: int) -> None:
        """The new nodes' namespaces follow."""
        known = len(self._network.nodes)
        self._network.grow(count)
        self._due = self._network.nodes[known:]

    def measure(self) -> list[Link]:
        self._network.step = "measure the links"
        return measure(self._network)

    def traffic(self) -> list[Traffic]:
        self._network.step = "read the interface counters"
        return self._network.traffic()

    def store(self) -> int:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, not marked so

        self._network.step = "open a store on the control network"
        self._store = None  # first: the old one's port and thread go
        self._store = TCPStore(
            self._network.wiring.control_address, 0, is_master=True, wait_for_workers=False,
            timeout=timedelta(seconds=60), multi_tenant=False,
        )
        return int(self._store.port)

    def hand_over(self) -> None:
        """Send the files that belong to the last answer."""
        for file in self._due:
            self._over(file)
        self._due = []
