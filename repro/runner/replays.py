"""Replays of the run folder to a tracking server: when they are requested, and how long the run waits for them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Protocol

from repro.runner.context import Watcher

PERIOD_SECONDS = 15.0
"""The least time between two replays while trials run."""
START_SECONDS, TRIAL_SECONDS = 30.0, 5.0
"""The longest wait for the replay before the first trial, and after a trial."""


class Tracking(Protocol):
    """A reader of the run folder in a separate process, which sends the record to a tracking server."""

    def sync(self, wait_seconds: float = 0.0) -> None:
        """Request a replay of new content; wait at most `wait_seconds` for it."""

    @property
    def problem(self) -> str:
        """The reason why the last replay failed; "" if it did not."""


@dataclass(slots=True)
class Replays:
    """Requests replays from a tracking process; does nothing without one."""

    tracking: Tracking | None
    watcher: Watcher
    _last: float = field(default_factory=time.monotonic)

    def begin(self) -> None:
        """Request the first replay; the parity gate runs meanwhile."""
        if self.tracking:
            self.tracking.sync()

    def wait_for_first(self) -> None:
        """Wait until the server has answered, so that its set-up does not disturb the first trial."""
        if self.tracking is None:
            return
        self.tracking.sync(wait_seconds=START_SECONDS)
        if self.tracking.problem:
            self.watcher.stage(f"mlflow: {self.tracking.problem}; the run continues without it")

    def while_running(self) -> None:
        """Request a replay during a trial: a long one appears in the tracking server before its end."""
        self._request(0.0)

    def after_trial(self) -> None:
        """Request a replay between trials and wait for it."""
        self._request(TRIAL_SECONDS)

    def _request(self, wait_seconds: float) -> None:
        if self.tracking and time.monotonic() - self._last > PERIOD_SECONDS:
            self._last = time.monotonic()
            self.tracking.sync(wait_seconds=wait_seconds)
