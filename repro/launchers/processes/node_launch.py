"""The ranks of a launch on this node: torch elastic starts each as a new process forked from the warm server."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from repro.core.errors import TrialError
from repro.launchers.processes.rank import Assignment, Membership, run
from repro.launchers.processes.rank_processes import RankProcesses, RankReport, read_reports, reason

LEAVE_ELASTIC_AFTER = 20
"""Tenths of a second after the ranks were killed until a launch that has not ended is interrupted."""
LEAVING = signal.SIGTERM
"""Signal that interrupts it."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Signals that make elastic end a launch."""


@dataclass(frozen=True, slots=True)
class NodeEnd:
    """The end of a launch on one node."""

    codes: list[int | None]
    """Exit codes, by rank of this node; None: not started, or not ended."""
    reports: list[RankReport]
    """Written by ranks that failed, by rank of this node."""
    killed: list[bool]
    """By rank of this node: it ran until the launch was ended from here."""
    suspect: int | None
    """The rank of the whole launch that elastic saw fail first."""


SHARED = "/dev/shm"
InTime = Callable[[RankProcesses, threading.Event], bool]
"""Wait for the end of the launch, which sets the event; False: the ranks are to be killed."""


@dataclass(frozen=True, slots=True)
class NodeLaunch:
    """A launch on this node."""

    work: Assignment
    processes: int
    """Ranks of this node."""
    place: object | None
    """The `ClusterPlace` of every rank, or what is pickled to it; None: where it is started."""
    members: Membership
    monitor_seconds: float
    """Interval at which elastic checks for ended ranks."""
    grace_seconds: int
    """Time between a signal to the launcher and the killing of its ranks."""

    def carry_out(self, in_time: InTime, folder: str) -> NodeEnd:
        """Run the entry in every rank and wait for all of them; in the main thread.

        A signal that ends the launch is delivered again after every rank has ended: SIGINT becomes KeyboardInterrupt.

        Args:
            folder: for files of this launch.

        Raises:
            TrialError: elastic itself failed before or after the ranks ran.
        """
        ranks, suspect, ending, first = RankProcesses(), None, _Ending(), self.members.node * self.processes
        with tempfile.TemporaryDirectory(dir=folder) as reports:
            with _signals_delivered(ending), _watched(ranks, in_time, ending):
                suspect = self._elastic(ranks, reports)
            found = read_reports(Path(reports), first, self.processes)
        return NodeEnd(ranks.exit_codes(self.processes), found,
                       (ending.killed + [False] * self.processes)[: self.processes], suspect)

    def _elastic(self, ranks: RankProcesses, reports: str) -> int | None:
        """Launch and wait; return the rank that elastic saw fail first."""
        from torch.distributed.elastic.multiprocessing.api import SignalException
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.launcher.api import elastic_launch

        before, tempfile.tempdir = tempfile.tempdir, reports  # torch leaves files there if this process is killed
        try:
            elastic_launch(self._configuration(), run)(self.work, ranks, self.place, reports)
        except ChildFailedError as failed:
            return min(failed.failures, default=None)
        except SignalException:
            raise
        except Exception as error:  # torch elastic passes on errors of its store, its agent and the system
            locks = isinstance(error, OSError) and not error.filename and not os.access(SHARED, os.W_OK)
            raise TrialError(f"torch elastic could not launch: {reason(error)}"
                             f"{f': {SHARED}, where processes share locks, cannot be written' * locks}") from error
        finally:
            tempfile.tempdir = before
            ranks.kill()
            ranks.reap(self.grace_seconds)
        return None

    def _configuration(self) -> Any:
        from torch.distributed.launcher.api import LaunchConfig

        from repro.launchers.processes import fixed_nodes

        # Before torch 2.13 it cannot be chosen: 30 seconds.
        known = "shutdown_timeout" in LaunchConfig.__annotations__
        grace: dict[str, Any] = {"shutdown_timeout": self.grace_seconds} if known else {}
        # Under nohup, SIGHUP must stay harmless.
        handled = ",".join(each.name for each in SIGNALS if signal.getsignal(each) is not signal.SIG_IGN)
        return LaunchConfig(
            min_nodes=self.members.nodes,
            max_nodes=self.members.nodes,
            nproc_per_node=self.processes,
            run_id=uuid.uuid4().hex,
            rdzv_backend=fixed_nodes.BACKEND,
            rdzv_endpoint=self.members.address,
            rdzv_configs={"members": self.members},
            local_addr=self.members.address,
            max_restarts=0,
            monitor_interval=self.monitor_seconds,
            start_method="forkserver",
            logs_specs=fixed_nodes.NoLogs(),
            signals_to_handle=handled,
            **grace,
        )


@contextlib.contextmanager
def _signals_delivered(ending: _Ending) -> Iterator[None]:
    """Restore the handlers that elastic replaces, then deliver the signal that ended the launch to them.

    Our own signal, sent to leave elastic, is not delivered; one that a user sends meanwhile is.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException

    before = {each: signal.getsignal(each) for each in SIGNALS}
    caught: signal.Signals | None = None
    try:
        yield
    except SignalException as ended:
        caught = ended.sigval
    finally:
        if threading.current_thread() is threading.main_thread():
            for each, handler in before.items():
                signal.signal(each, handler)
    if caught is not None and not (ending.left and caught == LEAVING):
        handler = before[caught]
        if callable(handler):
            handler(caught, None)  # not raised again: it would count as a second signal
        else:
            signal.raise_signal(caught)


@contextlib.contextmanager
def _watched(ranks: RankProcesses, in_time: InTime, ending: _Ending) -> Iterator[None]:
    """Kill all ranks when `in_time` returns False.

    Elastic waits for ever for a rank that ended with exit code 0 before its entry returned, and no process is left
    whose end would wake it; it also waits for other nodes. After all ranks have ended, elastic is left through its own
    signal handler.
    """
    done, handler = threading.Event(), signal.getsignal(LEAVING)

    def watch() -> None:
        if in_time(ranks, done):
            return
        ending.killed = ranks.running()
        for turn in itertools.count():
            ranks.kill()
            if done.wait(0.1):
                return
            if turn >= LEAVE_ELASTIC_AFTER and not ending.left and signal.getsignal(LEAVING) is not handler:
                ending.left = True  # elastic has set its handler
                signal.pthread_kill(threading.main_thread().ident or 0, LEAVING)

    thread = threading.Thread(target=watch, name="repro-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


class _Ending:
    """State of a launch that is ended from here."""

    def __init__(self) -> None:
        self.left = False
        """True: elastic was interrupted by our signal."""
        self.killed: list[bool] = []
        """By rank: it ran when the ranks were killed."""


def interface_of(address: str) -> dict[str, str]:
    """Return variables that make gloo and NCCL use the interface that has `address`, unless the user has set them."""
    names = [name for name, addresses in psutil.net_if_addrs().items()
             if any(item.address.partition("%")[0] == address for item in addresses)]
    if not names:
        return {}
    wanted = {"GLOO_SOCKET_IFNAME": names[0], "NCCL_SOCKET_IFNAME": f"={names[0]}"}  # else NCCL takes eth1 and eth10
    return {key: value for key, value in wanted.items() if key not in os.environ}
