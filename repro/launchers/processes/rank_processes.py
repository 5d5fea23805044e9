"""Rank processes of one launch: find them, end them all, and report how each ended and why."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
from collections.abc import Sequence
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from typing import Any

from repro.seams.launching import RankCause, RankEnd


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

    def reap(self, seconds: float) -> None:
        """Wait until every rank has ended; from the launching thread only, because each end can be read once."""
        for process in self._processes:
            if getattr(process, "pid", None) is not None:
                process.wait(seconds)

    def exit_codes(self, processes: int) -> list[int | None]:
        """Return the exit codes by rank; None: not started, or not ended."""
        known = [process.returncode for process in self._processes]
        return (known + [None] * processes)[:processes]


def ends(
    codes: list[int | None], reports: Path, suspect: int | None, late: str, each: Sequence[str] = ()
) -> tuple[RankEnd, ...]:
    """Return the end of each rank, separating the cause from its consequences.

    Args:
        codes: exit codes by rank.
        reports: the folder in which failing ranks wrote rank<N>.json.
        suspect: the rank that elastic saw fail first; used if nothing better is known.
        late: why all ranks were killed; empty if they were not.
        each: by rank, where ranks were killed because nothing got on: what each was doing. `suspect` is then the one
            that kept the others waiting, None where that is not known.
    """
    if each:
        return tuple(_end(rank, code, why, "failed", suspect)
                     for rank, (code, why) in enumerate(zip(codes, each, strict=True)))
    reports_by_rank = [_read(reports / f"rank{rank}.json") for rank in range(len(codes))]
    cause = None if late else _cause(codes, reports_by_rank, suspect)
    return tuple(
        RankEnd(rank, 0) if code == 0 else
        _end(rank, code, report.get("reason") or late or _without_report(code), report.get("cause", "failed"), cause)
        for rank, (code, report) in enumerate(zip(codes, reports_by_rank, strict=True))
    )


def _end(rank: int, code: int | None, reason: str, cause: RankCause, first: int | None) -> RankEnd:
    """Return the end of a rank; `first`: the rank that failed by itself, None if unknown."""
    code = -int(signal.SIGKILL) if code is None else code
    if first in (None, rank):
        return RankEnd(rank, code, reason, cause=cause)
    return RankEnd(rank, code, f"after rank {first}: {reason}", cause="ended_after_another_rank")


def _read(report: Path) -> dict[str, Any]:
    try:
        loaded: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
    return loaded


def _cause(codes: list[int | None], reports_by_rank: list[dict[str, Any]], suspect: int | None) -> int | None:
    """The rank that failed first: one without memory, one that could not report, the earliest report, the suspect."""

    def when(rank: int) -> float:
        if reports_by_rank[rank].get("cause") == "out_of_memory":
            return -1.0  # others lose their link to it at once, and may report that before it has cleaned up
        if reports_by_rank[rank]:
            return float(reports_by_rank[rank]["nanoseconds"])
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
