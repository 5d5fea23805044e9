"""Unnamed network namespaces: made by unshare, kept by open files, removed with the last process that uses them.

An ordinary user may make network namespaces inside a new user namespace, in which it has every capability. Its uid and
gid map to themselves there, so files behave as before. No other program is needed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any

from repro.core import orphans

_NEW_USER = 0x10000000
_NEW_NET = 0x40000000


def leave() -> int | None:
    """Move this process, which must have one thread, into a new network namespace.

    Returns:
        None if that was allowed directly (root); else an open file of the user namespace that was needed.

    Raises:
        OSError: the kernel has no such namespaces, or this user must not make them.
    """
    try:
        _call("unshare", _NEW_NET)
        return None
    except PermissionError:
        user, group = os.geteuid(), os.getegid()
    _call("unshare", _NEW_USER | _NEW_NET)
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{user} {user} 1")
    _write("/proc/self/gid_map", f"{group} {group} 1")
    return os.open("/proc/self/ns/user", os.O_RDONLY | os.O_CLOEXEC)


def here() -> int:
    """Return an open file of this thread's network namespace."""
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def another() -> int:
    """Return an open file of a new network namespace; this thread does not move."""
    home = here()
    try:
        _call("unshare", _NEW_NET)
        made = here()
        _call("setns", home, _NEW_NET)
    finally:
        os.close(home)
    return made


def enter(user: int | None, net: int) -> None:
    """Move this process into these namespaces; it must have one thread if there is a user namespace."""
    if user is not None:
        _call("setns", user, _NEW_USER)
    _call("setns", net, _NEW_NET)


@contextmanager
def inside(net: int) -> Iterator[None]:
    """Move this thread to another network namespace inside the block; a socket made there stays there."""
    home = here()
    try:
        _call("setns", net, _NEW_NET)
        yield
    finally:
        _call("setns", home, _NEW_NET)
        os.close(home)


def _write(file: str, text: str) -> None:
    # One write each: the kernel accepts no partial writes to these files.
    Path(file).write_text(text)


def _call(name: str, *arguments: int) -> None:
    """Make a system call that returns 0 or sets errno; Python has these two only since 3.12."""
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def node_of(rank: int, processes: int, nodes: int) -> int:
    """Return the node of a rank; nodes hold blocks of ranks: with 2 per node, ranks 0 and 1 are on node 0."""
    return rank * nodes // processes


class Placement:
    """Argument given to every rank; each rank receives its own `Ticket` from it.

    Torch elastic starts ranks in order, by pickling their arguments for the fork server, which can carry open files.
    Each pickling is for the next rank and carries the namespaces of that rank's node only.
    """

    def __init__(
        self, user: int | None, nodes: Sequence[int], environment: Sequence[Mapping[str, str]],
        slowdown: Mapping[int, float],
    ) -> None:
        """`nodes` and `environment` are by rank; `slowdown` names the slowed ranks only."""
        self._user, self._nodes, self._environment, self._slowdown = user, nodes, environment, slowdown
        self._issued = 0

    def __reduce__(self) -> tuple[type[Ticket], tuple[Any, ...]]:
        assert get_spawning_popen() is not None, "a placement is pickled only for a process that is being started"
        rank = self._issued
        self._issued += 1
        user = None if self._user is None else DupFd(self._user)
        return Ticket, (user, DupFd(self._nodes[rank]), dict(self._environment[rank]), self._slowdown.get(rank, 1.0))


class Ticket:
    """Namespaces, environment and slowdown of one rank."""

    def __init__(self, user: Any, net: Any, environment: Mapping[str, str], slowdown: float) -> None:
        self._user, self._net, self.environment, self._slowdown = user, net, environment, slowdown

    def enter(self) -> None:
        """Move this process to its node; to be called before it has a second thread.

        Raises:
            OSError: the kernel refuses.
        """
        user, net = None if self._user is None else self._user.detach(), self._net.detach()
        enter(user, net)
        for file in (user, net):
            if file is not None:
                os.close(file)
        if self._slowdown > 1:
            slow_down(self._slowdown)


QUANTUM_SECONDS = 0.004


def slow_down(factor: float) -> None:
    """Slow this process from now until it ends: for every second of processor time it uses, it is stopped for
    (factor - 1) seconds. It must have one thread.

    A small process next to it reads its processor clock every few milliseconds and stops it by SIGSTOP for the time
    owed. So all computation takes `factor` times as long, including data loading and the processor's share of
    communication, however busy the machine is; time spent waiting for other ranks is not stretched. Threads that work
    at the same time count once. Owed time is paid in pauses of some milliseconds: that is the resolution.
    """
    rank = os.getpid()
    if os.fork():
        return
    orphans.signal_at_parent_exit(signal.SIGKILL)
    # The rank may have ended before the line above; the processor clock of an ended process raises OSError.
    with contextlib.suppress(OSError):
        if os.getppid() == rank:
            _pace(rank, factor)
    os._exit(0)


def _pace(pid: int, factor: float) -> None:
    clock = (~pid << 3) | 2  # the kernel's name for the processor clock of a whole process
    used, then, owed = time.clock_gettime(clock), time.monotonic(), 0.0
    while True:
        time.sleep(QUANTUM_SECONDS)
        now_used, now = time.clock_gettime(clock), time.monotonic()
        owed += (factor - 1) * min(now_used - used, now - then)
        used, then = now_used, now
        if owed < QUANTUM_SECONDS:
            continue
        os.kill(pid, signal.SIGSTOP)
        time.sleep(owed)
        os.kill(pid, signal.SIGCONT)
        then = time.monotonic()
        owed -= then - now
