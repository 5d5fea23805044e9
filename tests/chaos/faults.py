"""What is done to a run: a seeded plan of faults, and how each is inflicted on real processes."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

KINDS = ("kill rank", "stop rank", "kill server", "kill parent", "interrupt", "interrupt twice", "truncate log",
         "full disk")


@dataclass(frozen=True)
class Fault:
    """One thing to go wrong."""

    kind: str
    rank: int
    wait_seconds: float
    """From the moment ranks run to the fault."""


def plan(seed: int, count: int, ranks: int, kinds: Sequence[str] = KINDS, longest: float = 0.6) -> list[Fault]:
    """`count` faults: every kind in turn, shuffled, so that a short plan has each of them."""
    random = np.random.default_rng(seed)
    names = [kinds[index % len(kinds)] for index in range(count)]
    random.shuffle(names)
    return [Fault(name, int(random.integers(ranks)), float(random.uniform(0, longest))) for name in names]


def ranks_of(parent: int) -> dict[int, int]:
    """Rank -> pid of the ranks that run now, known by the log that each prints to."""
    found: dict[int, int] = {}
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(parent).children(recursive=True):
            with contextlib.suppress(OSError, ValueError):
                printed = Path(f"/proc/{child.pid}/fd/1").readlink()
                if printed.name.startswith("rank") and os.getpgid(child.pid) == child.pid:
                    found[int(printed.stem[4:])] = child.pid
    return found


def server_of(parent: int) -> int | None:
    """The fork server of a run."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(parent).children():
            with contextlib.suppress(psutil.Error):
                if any("forkserver" in part for part in child.cmdline()):
                    return child.pid
    return None


def inflict(fault: Fault, parent: int, run: Path) -> bool:
    """Do it; False: there was nothing any more that it could be done to."""
    if fault.kind in ("kill rank", "stop rank"):
        target = ranks_of(parent).get(fault.rank)
        return target is not None and _signal(target, signal.SIGKILL if fault.kind == "kill rank" else signal.SIGSTOP)
    if fault.kind == "kill server":
        server = server_of(parent)
        return server is not None and _signal(server, signal.SIGKILL)
    if fault.kind == "kill parent":
        return _signal(parent, signal.SIGKILL)
    if fault.kind in ("interrupt", "interrupt twice"):
        done = _signal(parent, signal.SIGINT)
        if fault.kind == "interrupt twice":
            time.sleep(0.02)
            _signal(parent, signal.SIGINT)
        return done
    if fault.kind == "truncate log":
        return _truncate(run, fault.wait_seconds)
    return _fill(run)


def _signal(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _truncate(run: Path, share: float) -> bool:
    """Cut the newest event log of a trial that has no result yet, somewhere."""
    open_logs = list(run.glob("trials/*/result_*.txt"))
    if not open_logs:
        return False
    newest = max(open_logs, key=lambda path: path.stat().st_mtime_ns)
    size = newest.stat().st_size
    os.truncate(newest, int(size * min(0.9, share)))
    return size > 0


def ballast(run: Path) -> Path:
    """The file that fills the disk."""
    return run.parent / "ballast"


def _fill(run: Path) -> bool:
    """Take all that is left of the file system that the run is on."""
    with ballast(run).open("wb", buffering=0) as stream, contextlib.suppress(OSError):
        while True:
            stream.write(b"\0" * 65536)
    with ballast(run).open("ab", buffering=0) as stream, contextlib.suppress(OSError):
        while True:
            stream.write(b"\0")
    return True
