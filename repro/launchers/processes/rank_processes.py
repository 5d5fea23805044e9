"""Rank processes of one launch: find them, end them all, and report how each ended and why."""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from typing import Any

from repro.core.errors import CheckpointRefused, OutOfMemory, TrialError
from repro.core.machine import is_out_of_memory
from repro.core.redact import masked
from repro.seams.launching import RankCause, RankEnd

Entry = Callable[[str, Mapping[str, Any]], object]
LONGEST_REASON = 500


def resolve(entry: str) -> Entry:
    """Import and return the function named by "module:function"."""
    module, _, name = entry.partition(":")
    function: Entry = getattr(importlib.import_module(module), name)
    return function


def reason(error: BaseException) -> str:
    """Return type and first line of an exception; without credentials, because it goes into the record.

    The type is omitted where `cause` says it already, and of an error of the harness, whose words are complete.
    """
    lines = masked(str(error)).strip().splitlines()
    kind = type(error).__name__
    if lines and isinstance(error, CheckpointRefused | OutOfMemory | TrialError):
        return lines[0][:LONGEST_REASON]
    return f"{kind}: {lines[0]}"[:LONGEST_REASON] if lines else kind


def cause(error: BaseException) -> RankCause:
    """Return the cause of a rank's end that `error` means."""
    if isinstance(error, CheckpointRefused):
        return "checkpoint_refused"
    return "out_of_memory" if is_out_of_memory(error) else "failed"


def exit_code(error: SystemExit) -> int:
    """Return the exit code of a process that raises `error`, as the interpreter computes it."""
    if error.code is None:
        return 0
    return error.code if isinstance(error.code, int) else 1


class RankProcesses:
    """Processes of the ranks of one launch; collects them while they are started.

    Torch elastic reports the first rank that failed and hides the rest. It starts each rank by pickling the entry's
    arguments, so a pickled argument learns the process that it is pickled for: the hook that multiprocessing's own
    locks and queues use.
    """

    def __init__(self) -> None:
        self._processes: list[Any] = []

    def __reduce__(self) -> tuple[type[object], tuple[()]]:
        process = get_spawning_popen()
        assert process is not None, "it is pickled only for a process that is being started"
        self._processes.append(process)
        return object, ()

    def kill(self) -> None:
        """Kill every rank and all processes that it started; may be called from any thread, and repeatedly."""
        for process in self._processes:
            pid = getattr(process, "pid", None)
            if pid is None:
                continue
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def pids(self) -> list[int | None]:
        """Return the pids of the started ranks, by rank; None: already ended."""
        return [getattr(process, "pid", None) if process.returncode is None else None for process in self._processes]

    def running(self) -> list[bool]:
        """Return which of the started ranks run; reads no exit code, so that it may be called from any thread."""
        return [process.returncode is None and not wait([process.sentinel], 0) for process in self._processes]

    def reap(self, seconds: float) -> None:
        """Wait until every rank has ended; from the launching thread only, because each end can be read once."""
        for process in self._processes:
            if getattr(process, "pid", None) is not None:
                process.wait(seconds)

    def exit_codes(self, processes: int) -> list[int | None]:
        """Return the exit codes by rank; None: not started, or not ended."""
        known = [process.returncode for process in self._processes]
        return (known + [None] * processes)[:processes]


@dataclass(frozen=True, slots=True)
class RankReport:
    """Report of a rank that failed; empty: it wrote none."""

    reason: str = ""
    cause: RankCause = "failed"
    nanoseconds: int = 0
    """Monotonic clock of the launching node."""


def read_reports(folder: Path, first: int, processes: int) -> list[RankReport]:
    """Return the reports of the ranks from `first` on; ranks that failed wrote rank<N>.json into `folder`."""
    return [_read(folder / f"rank{rank}.json") for rank in range(first, first + processes)]


def ends(
    codes: Sequence[int | None], reports: Sequence[RankReport], suspect: int | None, late: str
) -> tuple[RankEnd, ...]:
    """Return the end of each rank, separating the cause from its consequences.

    Args:
        codes: exit codes by rank.
        reports: by rank.
        suspect: the rank that elastic saw fail first; used if nothing better is known.
        late: why all ranks were killed; empty if they were not.
    """
    cause = None if late else _cause(codes, reports, suspect)
    return tuple(
        RankEnd(rank, 0) if code == 0 else
        _end(rank, code, report.reason or late or _without_report(code), report.cause, cause)
        for rank, (code, report) in enumerate(zip(codes, reports, strict=True))
    )


def hung_ends(codes: Sequence[int | None], hung: int | None, each: Sequence[str]) -> tuple[RankEnd, ...]:
    """Return the end of each rank, where all were killed because nothing got on.

    Args:
        hung: the rank that kept the others waiting; None: not known.
        each: by rank: what it was doing.
    """
    return tuple(_end(rank, code, why, "failed", hung) for rank, (code, why) in enumerate(zip(codes, each, strict=True))
                 )


def _end(rank: int, code: int | None, reason: str, cause: RankCause, first: int | None) -> RankEnd:
    """Return the end of a rank; `first`: the rank that failed by itself, None if unknown."""
    code = -int(signal.SIGKILL) if code is None else code
    if first in (None, rank):
        return RankEnd(rank, code, reason, cause=cause)
    return RankEnd(rank, code, f"after rank {first}: {reason}", cause="ended_after_another_rank")


def _read(report: Path) -> RankReport:
    try:
        return RankReport(**json.loads(report.read_text(encoding="utf-8")))
    except (FileNotFoundError, json.JSONDecodeError):
        return RankReport()


def _cause(codes: Sequence[int | None], reports: Sequence[RankReport], suspect: int | None) -> int | None:
    """The rank that failed first: one without memory, one that could not report, the earliest report, the suspect."""

    def when(rank: int) -> float:
        report = reports[rank]
        if report.cause == "out_of_memory":
            return -1.0  # others lose their link to it at once, and may report that before it has cleaned up
        if report.reason:
            return float(report.nanoseconds)
        # SIGTERM is how elastic ends the others.
        return math.inf if codes[rank] in (None, -signal.SIGTERM) else 0.0

    failed = [rank for rank, code in enumerate(codes) if code != 0]
    return min(failed, key=lambda rank: (when(rank), rank != suspect), default=None)


def _without_report(code: int | None) -> str:
    if code is None:
        return "did not start"
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"killed by {name}" + (" (by the kernel when memory runs out, or by hand)" if name == "SIGKILL" else "")
