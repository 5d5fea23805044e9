"""Launcher that starts ranks on this machine with torch elastic, each a new process forked from a warm server."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, PrivateAttr

from repro.core import fence
from repro.core.errors import TrialError
from repro.launchers.processes import hang, shared_fork_server
from repro.launchers.processes.entry import reason
from repro.launchers.processes.hang import FileGrowth
from repro.launchers.processes.rank import Assignment, SamePlace, run
from repro.launchers.processes.rank_processes import RankProcesses, ends
from repro.launchers.processes.shared_fork_server import WarmServer
from repro.seams.launching import Launcher, LaunchRequest, LaunchResult
from repro.seams.plugin import Setting

LEAVE_ELASTIC_AFTER = 20
"""Tenths of a second after the deadline until a launch that has not ended is interrupted."""
LEAVING = signal.SIGTERM
"""Signal that interrupts it."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Signals that make elastic end a launch."""


class Local(Launcher):
    """One process per rank on this machine.

    Ranks get the environment that `open` found, then elastic's variables, then the request's.
    """

    title: ClassVar[str] = "torch elastic on this machine"
    preload: ClassVar[tuple[str, ...]] = ("torch", "torch._dynamo")  # elastic starts every rank with torch
    monitor_seconds: float = Field(default=0.05, gt=0, le=5)
    """Interval at which elastic checks for ended ranks; adds half of it to a launch on average."""
    grace_seconds: int = Field(default=5, ge=1)
    """Time between a signal to the launcher and the killing of its ranks."""

    _server: WarmServer | None = PrivateAttr(default=None)
    _first: bool = PrivateAttr(default=False)

    @property
    def preload_seconds(self) -> float:
        """Duration of `open`, counted once per run; 0 for a launcher that found the server running."""
        return self._server.seconds if self._server and self._first else 0.0

    @property
    def module_seconds(self) -> Mapping[str, float]:
        """Import time of each preloaded module, in loading request."""
        return self._server.module_seconds if self._server else {}

    def unsupported(self, setting: Setting) -> str | None:
        if setting.device == "cuda" and setting.processes > setting.device_count:
            return f"{setting.processes} processes need one GPU each; this machine has {setting.device_count}"
        most = max(8, 4 * _cores())
        if setting.device == "cpu" and setting.launched > most:
            return f"{setting.launched} processes are too many for {_cores()} cores; at most {most}"
        return None

    def open(self, preload: Sequence[str], device: str) -> None:
        """Start the fork server and return when it is warm.

        Raises:
            UsageError: a module cannot be loaded, loading it starts CUDA, or a launcher with other modules is open.
        """
        self._server = shared_fork_server.acquire(preload, device)
        self._first = self._server.users == 1

    def launch(self, request: LaunchRequest) -> LaunchResult:
        """Run the entry in one new process per rank and wait for all of them.

        A signal that ends the launch is delivered again after every rank has ended: SIGINT becomes KeyboardInterrupt.

        Raises:
            TrialError: elastic itself failed before or after the ranks ran.
        """
        return self._run(request, SamePlace(), _loopback())

    def close(self) -> None:
        """Release the fork server; the last launcher that does so stops it and restores the environment."""
        if self._server is not None:
            server, self._server = self._server, None
            shared_fork_server.release(server)

    def _run(self, request: LaunchRequest, place: object, environment: Mapping[str, str]) -> LaunchResult:
        """Launch ranks at `place`; the request's environment overrides `environment`."""
        assert self._server is not None, "launch comes after open"
        fence.make_folder(request.folder)
        self._server.revive()
        begin = time.monotonic()
        ranks, suspect = RankProcesses(), None
        with tempfile.TemporaryDirectory(dir=self._server.folder) as reports:
            work = Assignment(
                request.entry, request.payload, str(request.folder), reports, {**environment, **request.environment},
                request.expendable,
            )
            late = _Late()
            with _signals_delivered(late), _deadline(ranks, request, late):
                suspect = self._elastic(request.processes, work, ranks, place)
            codes = ranks.exit_codes(request.processes)
            if late.stacks is not None:
                each = hang.reasons(late.stacks, request.processes, request.stall_seconds or 0.0)
                ended = ends(codes, Path(reports), hang.find_hung_rank(late.stacks), "", each)
                return LaunchResult(ended, time.monotonic() - begin, hung=True)
            why = f"not finished after {request.timeout_seconds:g} s" if late.is_set() else ""
            ended = ends(codes, Path(reports), suspect, why)
        return LaunchResult(ended, time.monotonic() - begin, late.is_set())

    def _elastic(self, processes: int, work: Assignment, ranks: RankProcesses, place: object) -> int | None:
        """Launch and wait; return the rank that elastic saw fail first."""
        from torch.distributed.elastic.multiprocessing.api import SignalException
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.launcher.api import elastic_launch

        try:
            elastic_launch(self._configuration(processes), run)(work, ranks, place)
        except ChildFailedError as failed:
            return min(failed.failures, default=None)
        except SignalException:
            raise
        except Exception as error:  # torch elastic passes on errors of its store, its agent and the system
            raise TrialError(f"torch elastic could not launch: {reason(error)}") from error
        finally:
            ranks.kill()
            ranks.reap(self.grace_seconds)
        return None

    def _configuration(self, processes: int) -> Any:
        from torch.distributed.launcher.api import LaunchConfig

        from repro.launchers.processes import one_node

        return LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=processes,
            run_id=uuid.uuid4().hex,
            rdzv_backend=one_node.BACKEND,
            rdzv_endpoint=one_node.ADDRESS,
            local_addr=one_node.ADDRESS,
            max_restarts=0,
            monitor_interval=self.monitor_seconds,
            start_method="forkserver",
            logs_specs=one_node.NoLogs(),
            signals_to_handle=_signals_to_handle(),
            shutdown_timeout=self.grace_seconds,
        )


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _loopback() -> dict[str, str]:
    """Return variables that keep gloo and NCCL on the loopback interface, to which the rendezvous is bound."""
    names = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    wanted = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    return {key: names[0] for key in wanted if names and key not in os.environ}


def _signals_to_handle() -> str:
    """Return the signals that the caller does not ignore: under nohup, SIGHUP must stay harmless."""
    return ",".join(each.name for each in SIGNALS if signal.getsignal(each) is not signal.SIG_IGN)


@contextlib.contextmanager
def _signals_delivered(late: _Late) -> Iterator[None]:
    """Restore the handlers that elastic replaces, then deliver the signal that ended the launch to them.

    The deadline's own signal, sent to leave elastic, is not delivered; one that a user sends meanwhile is.
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
    if caught is not None and not (late.left and caught == LEAVING):
        handler = before[caught]
        if callable(handler):
            handler(caught, None)  # not raised again: it would count as a second signal
        else:
            signal.raise_signal(caught)


@contextlib.contextmanager
def _deadline(ranks: RankProcesses, request: LaunchRequest, late: _Late) -> Iterator[None]:
    """Kill all ranks at the time limit or when they make no progress, and set `late`.

    Elastic waits for ever for a rank that ended with exit code 0 before its entry returned, and no process is left
    whose end would wake it: after all ranks have ended, elastic is left through its own signal handler.
    """
    done = threading.Event()

    def watch() -> None:
        if _in_time(ranks, request, late, done):
            return
        late.set()
        for turn in itertools.count():
            ranks.kill()
            if done.wait(0.1):
                return
            if turn == LEAVE_ELASTIC_AFTER and threading.main_thread().ident is not None:
                late.left = True
                signal.pthread_kill(threading.main_thread().ident or 0, LEAVING)

    thread = threading.Thread(target=watch, name="repro-deadline", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _in_time(ranks: RankProcesses, request: LaunchRequest, late: _Late, done: threading.Event) -> bool:
    """Wait for the end of the launch; return False if it is late, with the stacks of hung ranks in `late`."""
    if request.stall_seconds is None or request.progress is None:
        return done.wait(request.timeout_seconds)
    end = time.monotonic() + request.timeout_seconds
    progress, period = FileGrowth(request.progress, request.stall_seconds), min(0.5, request.stall_seconds / 4)
    while not done.wait(min(period, max(0.0, end - time.monotonic()))):
        if progress.stalled():
            late.stacks = hang.ask(ranks.pids(), request.folder)
            return False
        if time.monotonic() >= end:
            return False
    return True


class _Late(threading.Event):
    """Event: the ranks of a launch were killed because they took too long."""

    stacks: dict[int, list[tuple[str, str]]] | None = None
    """Stack of each rank, if they made no progress."""
    left = False
    """True: elastic was interrupted by a signal."""
