"""The time limit of a launch, and the longest time without progress."""

from __future__ import annotations

import math
import threading
import time

from repro.launchers.processes import hang
from repro.launchers.processes.hang import FileGrowth, Stacks
from repro.launchers.processes.rank_processes import RankProcesses
from repro.seams.launching import LaunchRequest


class Deadline:
    """Watches one launch; `in_time` is the `InTime` of its `NodeLaunch`."""

    period = math.inf
    """Longest time between two looks at what happens on other nodes; infinite: there are none."""

    def __init__(self, request: LaunchRequest) -> None:
        self._request = request
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

    def _failed_elsewhere(self) -> bool:
        """Return whether ranks of another node have failed."""
        return False

    def _ask(self, ranks: RankProcesses) -> Stacks:
        """Return the stack of every rank that answers."""
        return hang.ask(ranks.pids(), self._request.folder)
