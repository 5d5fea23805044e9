"""Find hung ranks: a file stops growing, every rank dumps its stacks, and the stacks show which rank hangs."""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from repro.launchers.processes.rank_processes import RankProcesses, RankReport, ends, hung_ends
from repro.seams.launching import LaunchRequest, LaunchResult

ASK = signal.SIGUSR1
"""Signal at which a rank writes the stacks of all its threads to its log, even inside a call that hangs."""
ANSWER_SECONDS = 2.0
"""Time for the answer, enough on a busy machine."""
BELOW = f"/{__name__.rpartition('.')[0].replace('.', '/')}/rank.py"
"""The frame that called the entry: it and those of torch elastic below it are not where a rank waits."""
STOPPED = "stopped by a signal"
Stacks = dict[int, list[tuple[str, str]]]
"""By rank: the frames of its main thread, innermost first, as (file, "function (file:line)")."""
_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>\S+)')
_WAITS = ("/torch/distributed/", "/torch/autograd/", "/repro/comm/", "/deepspeed/comm/")
"""Files on the stack of a rank that waits for others: in a collective, or in a backward pass with waiting hooks."""


class FileGrowth:
    """Watches the growth of a file."""

    def __init__(self, path: Path, seconds: float) -> None:
        self._path, self._seconds = path, seconds
        self._seen, self._since = self._state(), time.monotonic()

    def stalled(self) -> bool:
        """Return True if the file has not changed for the declared time."""
        state, now = self._state(), time.monotonic()
        if state != self._seen:
            self._seen, self._since = state, now
        return now - self._since > self._seconds

    def _state(self) -> tuple[int, int]:
        try:
            found = self._path.stat()
        except OSError:
            return -1, 0
        return found.st_size, found.st_mtime_ns


def ask(pids: Sequence[int | None], folder: Path, first: int = 0) -> Stacks:
    """Return the stack of every rank's main thread, innermost first, as (file, "function (file:line)").

    The stacks of all threads are in the ranks' logs afterwards. A stopped rank has the one frame `STOPPED`; a rank that
    does not answer has none.

    Args:
        pids: by rank, from `first` on; None: not started.
        folder: folder of rank<N>.log.
    """
    logs = {rank: folder / f"rank{rank}.log" for rank in range(first, first + len(pids))}
    before = {rank: _size(path) for rank, path in logs.items()}
    found: Stacks = {}
    for rank, pid in enumerate(pids, first):
        if pid is None:
            continue
        if _is_stopped(pid):
            found[rank] = [("", STOPPED)]
        else:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, ASK)
    late = time.monotonic() + ANSWER_SECONDS
    waiting = {rank for rank, pid in enumerate(pids, first) if pid is not None and rank not in found}
    while waiting and time.monotonic() < late:
        time.sleep(0.05)
        for rank in sorted(waiting):
            if frames := innermost(_from(logs[rank], before[rank])):
                found[rank] = frames
                waiting.discard(rank)
    return found


def innermost(dump: str) -> list[tuple[str, str]]:
    """Return the frames of the signalled thread, down to the entry, from faulthandler's text."""
    _, mark, text = dump.partition("Current thread ")
    frames: list[tuple[str, str]] = []
    for line in text.splitlines()[1:] if mark else []:
        match = _FRAME.match(line)
        if match is None or match["file"].endswith(BELOW):
            break
        name = Path(match["file"]).name
        frames.append((match["file"], f"{match['name']} ({name}:{match['line']})"))
    return frames


def find_hung_rank(stacks: Mapping[int, Sequence[tuple[str, str]]]) -> int | None:
    """Return the rank that the others wait for: stopped, or alone outside every collective; None if unknown."""
    stopped = [rank for rank, frames in stacks.items() if frames and frames[0][1] == STOPPED]
    if stopped:
        return stopped[0]
    busy = [rank for rank, frames in stacks.items() if not any(part in file for file, _ in frames for part in _WAITS)]
    return busy[0] if len(busy) == 1 and len(stacks) > 1 else None


def reasons(stacks: Mapping[int, Sequence[tuple[str, str]]], processes: int, seconds: float) -> list[str]:
    """Return one line per rank: the time without progress, and the frame it was in."""
    return [f"hung: no event for {seconds:g} s, {_where(stacks.get(rank, ()))}" for rank in range(processes)]


def _where(frames: Sequence[tuple[str, str]]) -> str:
    if not frames:
        return "and it did not answer"
    return f"it was {STOPPED}" if frames[0][1] == STOPPED else f"it was in {frames[0][1]}; all stacks are in its log"


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    except (OSError, IndexError):
        return False


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _from(path: Path, offset: int) -> str:
    try:
        with path.open("rb") as stream:
            stream.seek(offset)
            return stream.read(1 << 20).decode(errors="replace")
    except OSError:
        return ""


class Deadline:
    """Watches one launch; `in_time` is the `InTime` of its `NodeLaunch`."""

    period = math.inf
    """Longest time between two looks at what happens on other nodes; infinite: there are none."""

    def __init__(self, request: LaunchRequest) -> None:
        self._request, self._begin = request, time.monotonic()
        self.passed = False
        """True: the ranks were killed because they took too long, or made no progress."""
        self.stacks: Stacks | None = None
        """Stack of each rank, if they made no progress."""

    def in_time(self, ranks: RankProcesses, done: threading.Event) -> bool:
        """Wait for the end of the launch; return False if it is late, or has failed on another node."""
        request, progress, period = self._request, None, self.period
        if request.stall_seconds is not None and request.progress is not None:
            progress = FileGrowth(request.progress, request.stall_seconds)
            period = min(period, 0.5, request.stall_seconds / 4)
        end = time.monotonic() + request.timeout_seconds
        while not done.wait(min(period, max(0.0, end - time.monotonic()))):
            if self._failed_elsewhere():
                return False
            if progress is not None and progress.stalled():
                self.stacks = self._ask(ranks)
            self.passed = self.stacks is not None or time.monotonic() >= end
            if self.passed:
                return False
        return True

    def result(
        self, codes: Sequence[int | None], reports: Sequence[RankReport], suspect: int | None
    ) -> LaunchResult:
        """Return the end of the launch, of which `rank_processes.ends` takes the arguments."""
        request, seconds = self._request, time.monotonic() - self._begin
        if self.stacks is not None:
            each = reasons(self.stacks, request.processes, request.stall_seconds or 0.0)
            return LaunchResult(hung_ends(codes, find_hung_rank(self.stacks), each), seconds, hung=True)
        late = f"not finished after {request.timeout_seconds:g} s" if self.passed else ""
        return LaunchResult(ends(codes, reports, suspect, late), seconds, self.passed)

    def _failed_elsewhere(self) -> bool:
        """Return whether ranks of another node have failed."""
        return False

    def _ask(self, ranks: RankProcesses) -> Stacks:
        """Return the stack of every rank that answers."""
        return ask(ranks.pids(), self._request.folder)
