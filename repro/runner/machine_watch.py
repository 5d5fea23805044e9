"""Checks between trials: was the clock set, did the machine sleep, was it throttled while a trial ran?"""

from __future__ import annotations

import errno
import os
import pwd
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from repro.core.errors import GuardError, OutputError, UsageError
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


VARIABLE = "REPRO_TIMING_LOCK"
NAME = "\0repro-timing"
JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")
PAUSE_SECONDS = 0.2


@contextmanager
def only_run_that_times(show: Callable[[str], None]) -> Iterator[float]:
    """Hold the machine's timing lock; while another run holds it, say so once and wait. Gives the seconds waited.

    `REPRO_TIMING_LOCK=off` does without, which the record shows among the settings.

    Args:
        show: receives the line that names the other run.

    Raises:
        UsageError: the variable has another value.
        OutputError: the kernel refuses the socket.
    """
    stated = os.environ.get(VARIABLE, "")
    if stated not in ("", "off"):
        raise UsageError(f"{VARIABLE}={stated}: must be `off`, or not set")
    if stated or any(name in os.environ for name in JOBS):
        yield 0.0
        return
    begun = time.monotonic()
    with socket.socket(socket.AF_UNIX) as lock:
        waits = not _taken(lock)
        if waits:
            show(f"waiting for another run that times its trials on this machine{_owner()}; Ctrl-C ends the wait; "
                 f"to run without the lock, set {VARIABLE}=off")
            while not _taken(lock):
                time.sleep(PAUSE_SECONDS)
        lock.listen()  # so that others can ask who holds it
        yield time.monotonic() - begun if waits else 0.0


def _taken(lock: socket.socket) -> bool:
    try:
        lock.bind(NAME)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False
        raise OutputError(f"the lock that keeps two runs from timing at once: {error.strerror}; to run without "
                          f"it, set {VARIABLE}=off") from error
    return True


def _owner() -> str:
    """Return process and user of the holder, as the kernel knows them; "" if it has just ended."""
    with socket.socket(socket.AF_UNIX) as asked:
        asked.setblocking(False)
        try:
            asked.connect(NAME)
            pid, user, _ = struct.unpack("3i", asked.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        except OSError:
            return ""
    try:
        return f" (pid {pid} of {pwd.getpwuid(user).pw_name})"
    except KeyError:
        return f" (pid {pid} of user {user})"
