"""Checks between trials: was the clock set, did the machine sleep, was it throttled while a trial ran?"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from repro.core.errors import GuardError
from repro.core.throttle import ThrottleWatch
from repro.record.folder.ledger import IncidentKind
from repro.runner.context import RunContext

STEP_SECONDS = 0.5
"""A wall clock that moves by more than this from the monotonic one was set, not slewed."""
SLEW = 1e-3
"""The largest gentle adjustment of a clock, seconds per second (NTP: 500 ppm)."""


@dataclass(slots=True)
class ClockWatch:
    """Detects that the wall clock was set, or that the machine slept, since the last look.

    Durations are not affected: they are taken from the monotonic clock. Dates in the ledger and in MLflow are.
    """

    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    _offset: float = 0.0
    _asleep: float = 0.0
    _at: float = 0.0

    def __post_init__(self) -> None:
        self._take()

    def _take(self) -> None:
        self._at = self.monotonic()
        self._offset, self._asleep = self.wall() - self._at, _asleep()

    def look(self) -> list[str]:
        """Describe each event since the last look in one sentence."""
        at, offset, asleep = self._at, self._offset, self._asleep
        self._take()
        return list(_events(self._offset - offset, self._asleep - asleep, self._at - at))


def _events(step: float, slept: float, elapsed: float) -> Iterator[str]:
    if slept > STEP_SECONDS:
        yield f"the machine slept for {slept:.1f} s"
    step -= slept
    if abs(step) > STEP_SECONDS + SLEW * elapsed:
        yield f"the wall clock was set {'forward' if step > 0 else 'back'} by {abs(step):.1f} s"


def _asleep() -> float:
    """Return the seconds since boot in which the monotonic clock was stopped."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return 0.0
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)


@dataclass(slots=True)
class MachineWatch:
    """Watches clock and throttling from trial to trial."""

    clock: ClockWatch = field(default_factory=ClockWatch)
    throttle: ThrottleWatch = field(default_factory=ThrottleWatch)

    def begin(self, device: str) -> None:
        """Take the throttle counters before the first trial."""
        self.throttle.device = device
        self.throttle.begin()

    def check(self, context: RunContext, trial_id: str, strict: bool) -> None:
        """Warn of what happened while a trial ran.

        Raises:
            GuardError: `strict`, and something happened.
        """
        found: list[tuple[IncidentKind, str]] = [("clock", text) for text in self.clock.look()]
        found += [("throttled", text) for text in self.throttle.look()]
        for kind, text in found:
            context.warn(kind, f"{text} while this trial ran", trial_id)
        if strict and found:
            raise GuardError(f"--strict: {found[0][1]} during {trial_id}; completed trials are kept")
