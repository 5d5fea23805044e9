"""Faults: a seeded plan of them, each inflicted on real processes and files."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SIGNALS = {"interrupt": signal.SIGINT, "interrupt twice": signal.SIGINT, "terminate": signal.SIGTERM,
           "hang up": signal.SIGHUP}
"""Signals that end `repro run` and that it can handle."""
BETWEEN = ("cut result", "cut log")
"""Happen to a trial that has ended, while no process writes the run."""
ANY_TIME = ("kill any time", "terminate any time")
"""Wait for nothing: they may come before a run has a plan, at the parity gate, between trials, while it is sealed or
its report is written."""
UNSEEN = ("kill tracker", "kill tracking server")
"""Leave no trace in the ledger: the trial that runs does not notice."""


@dataclass(frozen=True)
class Fault:
    """One thing to go wrong."""

    kind: str
    rank: int
    wait_seconds: float
    """From the moment ranks run to the fault."""
    share: float
    """For a cut file: the remaining share; uniform over its bytes."""


def plan(seed: int, count: int, ranks: int, kinds: Sequence[str], longest: float = 0.6) -> list[Fault]:
    """`count` faults: every kind in turn, shuffled, so that a short plan has each of them."""
    random = np.random.default_rng(seed)
    names = [kinds[index % len(kinds)] for index in range(count)]
    random.shuffle(names)
    return [Fault(name, int(random.integers(ranks)), float(random.uniform(0, longest)), float(random.random()))
            for name in names]


def descendants(pid: int) -> Iterator[int]:
    """Every process below `pid`, by the kernel's own list: looking must cost next to nothing."""
    children: list[str] = []
    with contextlib.suppress(OSError):  # it may end meanwhile, and so may each of its threads
        for task in list(Path(f"/proc/{pid}/task").iterdir()):
            with contextlib.suppress(OSError):
                children += (task / "children").read_text().split()
    for child in children:
        yield int(child)
        yield from descendants(int(child))


def ranks_of(parent: int) -> dict[int, int]:
    """Rank -> pid of the ranks that run now, known by the log that each prints to."""
    found: dict[int, int] = {}
    for child in descendants(parent):
        with contextlib.suppress(OSError, ValueError):
            printed = _printed_to(child)
            if printed.startswith("rank") and os.getpgid(child) == child:
                found[int(Path(printed).stem[4:])] = child
    return found


def _printed_to(pid: int) -> str:
    return Path(f"/proc/{pid}/fd/1").readlink().name


def _below(parent: int, what: Callable[[int], bool]) -> int | None:
    for child in descendants(parent):
        with contextlib.suppress(OSError):
            if what(child):
                return child
    return None


def _says(word: str) -> Callable[[int], bool]:
    return lambda pid: word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()


def net_of(pid: int) -> str:
    """The network namespace that a process is in."""
    return str(Path(f"/proc/{pid}/ns/net").readlink())


def who(pid: int) -> str:
    """A process, also after its number was given to another: with the clock ticks at which it started."""
    return f"{pid}:{Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[19]}"


def namespaces_of(parent: int) -> set[tuple[str, str]]:
    """(network namespace, who is in it) of a run, where it is not the machine's."""
    found = set()
    for child in descendants(parent):
        with contextlib.suppress(OSError):
            found.add((net_of(child), who(child)))
    return {item for item in found if item[0] != net_of(os.getpid())}


def _keeps_the_network(pid: int) -> bool:
    return net_of(pid) != net_of(os.getpid()) and not _printed_to(pid).startswith("rank")


VICTIMS: dict[str, Callable[[int], bool]] = {
    "kill server": _says("forkserver"), "kill tracker": _says("track\0"), "kill keeper": _keeps_the_network,
}


def inflict(fault: Fault, parent: int, run: Path) -> bool:
    """Do it; False: there was nothing any more that it could be done to."""
    if fault.kind in ("kill rank", "stop rank"):
        target = ranks_of(parent).get(fault.rank)
        return target is not None and _signal(target, signal.SIGKILL if fault.kind == "kill rank" else signal.SIGSTOP)
    if fault.kind in VICTIMS:
        target = _below(parent, VICTIMS[fault.kind])
        return target is not None and _signal(target, signal.SIGKILL)
    if fault.kind == "terminate any time":
        return _signal(parent, signal.SIGTERM)
    if fault.kind in ("kill parent", "kill any time"):
        return _signal(parent, signal.SIGKILL)
    if fault.kind in SIGNALS:
        done = _signal(parent, SIGNALS[fault.kind])
        if fault.kind == "interrupt twice":
            time.sleep(0.02)
            _signal(parent, signal.SIGINT)
        return done
    if fault.kind == "truncate log":
        return _truncate(run, fault.share)
    assert fault.kind == "full disk", fault.kind
    return _fill(run)


def _signal(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _truncate(run: Path, share: float) -> bool:
    """Cut the event log that was written to last, somewhere; its trial must still run."""
    running = [path for path in run.glob("trials/*/result_*.txt") if not (path.parent / "result.json").exists()]
    newest = max(running, key=lambda path: path.stat().st_mtime_ns, default=None)
    return newest is not None and _cut(newest, share)


def _cut(path: Path, share: float) -> bool:
    size = path.stat().st_size
    os.truncate(path, int(size * share))
    return size > 0


def damage(fault: Fault, trial: Path) -> str:
    """Cut the result, or its log, of a trial that has ended; the name of the file."""
    logs = sorted(trial.glob("result_*.txt"), key=lambda path: int(path.stem[7:]))
    path = trial / "result.json" if fault.kind == "cut result" else logs[-1]
    # Without its last byte, a line's end, a result still has all its content.
    os.truncate(path, int((path.stat().st_size - 1) * fault.share))
    return path.name


def ballast(run: Path) -> Path:
    """The file that fills the disk."""
    return run.parent / "ballast"


def _fill(run: Path) -> bool:
    """Fill the file system that the run is on."""
    for size in (65536, 1):
        with ballast(run).open("ab", buffering=0) as stream, contextlib.suppress(OSError):
            while True:
                stream.write(b"\0" * size)
    return True
