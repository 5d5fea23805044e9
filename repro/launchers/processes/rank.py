"""One rank's side of a launch: set-up before the entry in a new process, and its report afterwards."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing import parent_process
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from repro.core import door, orphans
from repro.core.machine import rank_threads
from repro.launchers.processes import hang
from repro.launchers.processes.rank_processes import cause, exit_code, reason, resolve
from repro.seams.launching import RankCause

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, not marked so


LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Membership:
    """This node's place among the nodes of a launch."""

    node: int = 0
    nodes: int = 1
    address: str = LOOPBACK
    """Of the node that hosts the store."""
    port: int = 0
    """Of the store; 0: node 0 of one node binds any."""
    store: TCPStore | None = None
    """On the node that hosts it, if it was bound before."""
    prefix: str = "agent"
    """Of all keys; a secret of the launch where nodes meet over a network."""


def listen_at(host: str, port: int) -> socket.socket:
    """Return a socket that listens at one address of this computer; at all of them if `host` is "".

    Raises:
        OSError: the address is in use, or none of this computer.
    """
    both = not host and socket.has_dualstack_ipv6()
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if both or ":" in host else socket.AF_INET,
                                    dualstack_ipv6=both)
    except OSError as error:  # Python adds the address
        raise OSError(error.errno, str(error.strerror).partition(" (while")[0]) from error


@dataclass(frozen=True, slots=True)
class Assignment:
    """Entry, payload and folders of one rank."""

    entry: str
    payload: Mapping[str, Any]
    folder: str
    """Folder of rank<N>.log."""
    environment: Mapping[str, str]
    expendable: tuple[int, ...] = ()
    """Ranks that may be killed without ending the others."""


class ClusterPlace(Protocol):
    """Place of a rank on the (emulated) cluster."""

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment of ranks there; overrides all other settings."""

    def enter(self) -> None:
        """Move there; called before this process has a second thread and before it uses the network."""


def run(assignment: Assignment, _processes: object, place: ClusterPlace | None, reports: str) -> None:
    """Run `assignment` in this process; torch elastic calls it once in every rank.

    `_processes` is unused here: pickling it on the way showed the parent which process this is.

    Args:
        place: None: where the process was started.
        reports: folder of rank<N>.json, written by a rank that fails.

    Raises:
        SystemExit: the entry failed; the reason is in the report, the traceback in the log.
    """
    rank = os.environ["RANK"]
    report = Path(reports) / f"rank{rank}.json"
    _print_to(Path(assignment.folder) / f"rank{rank}.log")
    # Its children end with it, and Ctrl-C in a terminal reaches only the launcher, which ends the ranks.
    os.setpgid(0, 0)
    # Elastic and multiprocessing turn SIGINT into a quiet exit 0; an interrupted rank has not succeeded.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if int(rank) in assignment.expendable:
        run_in_child(lambda: _run(assignment, place, report), Path(reports) / f"lost{rank}.json")
    else:
        _run(assignment, place, report)


def _run(assignment: Assignment, place: ClusterPlace | None, report: Path) -> None:
    faulthandler.enable(file=2, all_threads=True)
    faulthandler.register(hang.ASK, file=2, all_threads=True, chain=False)
    try:
        if place is not None:
            place.enter()
        _die_with_the_parent()
        _set_environment({**assignment.environment, **(place.environment if place else {})})
        resolve(assignment.entry)(assignment.folder, assignment.payload)
    except SystemExit as error:
        if code := exit_code(error):
            _write(report, f"exit code {code}", "failed")
        raise
    except Exception as error:  # a plug-in may raise anything: it is the reason of this end
        _write(report, reason(error), cause(error))
        traceback.print_exc()
        raise SystemExit(1) from None
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        ctypes.CDLL(None).fflush(None)  # a forked process ends without C's exit(), which would flush C's own buffers


def _print_to(log: Path) -> None:
    """Append all output of this process to `log`, unbuffered on Python's side."""
    handle = door.open_handle(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", write_through=True)  # type: ignore[union-attr]


def _die_with_the_parent() -> None:
    """End this rank when the process that started it ends, in any way.

    The kernel's parent is the fork server, whose end is watched by prctl. The launching process is watched through the
    pipe that multiprocessing keeps open for as long as it lives.
    """
    launching = parent_process()
    assert launching is not None, "a rank is always started by multiprocessing"

    def watch() -> None:
        wait([launching.sentinel])
        os.killpg(0, signal.SIGKILL)

    orphans.signal_at_parent_exit(signal.SIGKILL)
    threading.Thread(target=watch, name="repro-parent-watch", daemon=True).start()


def _set_environment(environment: Mapping[str, str]) -> None:
    os.environ.update(environment)
    torch = sys.modules.get("torch")
    if torch is not None and "OMP_NUM_THREADS" in environment:
        # torch was loaded in the fork server and has read its environment there.
        torch.set_num_threads(rank_threads(environment))


def _write(report: Path, why: str, cause: RankCause) -> None:
    content = {"reason": why, "cause": cause, "nanoseconds": time.monotonic_ns()}
    report.write_text(json.dumps(content), encoding="utf-8")


def run_in_child(entry: Callable[[], None], report: Path) -> None:
    """Run `entry` in a forked process and wait for it; this process must have one thread.

    Torch elastic ends all ranks as soon as one of its own processes dies. This one stays, and returns as if the rank
    had ended well if the child is killed by a signal, which goes into `report`.

    Raises:
        SystemExit: the entry failed by itself.
    """
    child = os.fork()
    if child == 0:
        code = 1
        try:
            entry()
            code = 0
        except SystemExit as error:
            code = exit_code(error)
        except BaseException:
            traceback.print_exc()
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(code)
    # Whoever asks this process for its stacks wants those of the rank.
    signal.signal(hang.ASK, lambda number, _frame: os.kill(child, number))
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        report.write_text(json.dumps({"signal": -code}), encoding="utf-8")
    elif code:
        raise SystemExit(code)
