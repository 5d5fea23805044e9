"""One rank's side of a launch: what happens in a fresh process before and after the entry."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing import parent_process
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, ClassVar, Protocol

from repro.core import child_process
from repro.launchers.processes import hang
from repro.launchers.processes.entry import exit_code, reason, resolve


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a rank is told to do, and where."""

    entry: str
    payload: Mapping[str, Any]
    folder: str
    """Receives rank<N>.log."""
    reports: str
    """Receives rank<N>.json from a rank that fails."""
    environment: Mapping[str, str]


class Place(Protocol):
    """Where on the (emulated) cluster a rank runs."""

    @property
    def environment(self) -> Mapping[str, str]:
        """What ranks there find in their environment, above all else."""

    def enter(self) -> None:
        """Go there; called before this process has a second thread, and before it touches the network."""


class Here:
    """Where the process was started."""

    environment: ClassVar[Mapping[str, str]] = {}

    def enter(self) -> None:
        """Stay."""


def run(assignment: Assignment, _roll: object, place: Place) -> None:
    """Carry out `assignment` in this process; torch elastic calls it once in every rank.

    `_roll` is worth nothing here: that it was pickled on its way told the parent which process this is.

    Raises:
        SystemExit: the entry failed; the reason is in the report, the traceback in the log.
    """
    rank = os.environ["RANK"]
    _print_to(Path(assignment.folder) / f"rank{rank}.log")
    _lead_a_group()
    hang.dump_stacks_on_signal()
    report = Path(assignment.reports) / f"rank{rank}.json"
    try:
        place.enter()
        _die_with_the_parent()
        _set_environment({**assignment.environment, **place.environment})
        resolve(assignment.entry)(assignment.folder, assignment.payload)
    except SystemExit as error:
        if code := exit_code(error):
            _write(report, f"exit code {code}")
        raise
    except Exception as error:  # whatever a plug-in raises is why this rank ended
        _write(report, reason(error))
        traceback.print_exc()
        raise SystemExit(1) from None
    finally:
        _flush()


def _print_to(log: Path) -> None:
    """Send all that this process prints to `log`, appended, Python's part of it unbuffered."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", write_through=True)  # type: ignore[union-attr]


def _lead_a_group() -> None:
    """What this rank starts ends with it, and Ctrl-C in a terminal reaches the launcher alone, which ends the ranks."""
    os.setpgid(0, 0)
    # Elastic and multiprocessing turn SIGINT into a quiet exit 0; a rank told to stop has not succeeded.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _die_with_the_parent() -> None:
    """Arrange that no rank outlives who started it, however that one ends.

    The kernel's parent is the fork server, so its death is watched by prctl; the launching process is watched through
    the pipe that multiprocessing keeps open for as long as it lives.
    """
    child_process.signal_at_parent_exit(signal.SIGKILL)
    threading.Thread(target=_watch_parent, name="repro-parent-watch", daemon=True).start()


def _watch_parent() -> None:
    launching = parent_process()
    assert launching is not None, "a rank is always started by multiprocessing"
    wait([launching.sentinel])
    os.killpg(0, signal.SIGKILL)


def _set_environment(environment: Mapping[str, str]) -> None:
    os.environ.update(environment)
    torch = sys.modules.get("torch")
    if torch is not None and environment.get("OMP_NUM_THREADS", "").isdigit():
        # The library was loaded in the fork server and has read its environment there.
        torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))


def _write(report: Path, why: str) -> None:
    report.write_text(json.dumps({"reason": why, "nanoseconds": time.monotonic_ns()}), encoding="utf-8")


def _flush() -> None:
    """A forked process ends without C's exit(): what C libraries have buffered would be lost."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    ctypes.CDLL(None).fflush(None)
