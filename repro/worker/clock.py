"""Step timing and phases: the only module of the worker that reads the clock during training."""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from repro.core import devices


class Stopwatch:
    """Wall time by phase; time outside every phase counts as `other`."""

    def __init__(self, now: Callable[[], int] = time.monotonic_ns) -> None:
        self._now, self._phase, self._since = now, "other", now()
        self._nanoseconds: dict[str, int] = {}

    def restart(self, at_ns: int) -> None:
        """Reset all phases; the clock runs from `at_ns` in phase `other`."""
        self._nanoseconds, self._phase, self._since = {}, "other", at_ns

    def state(self) -> dict[str, Any]:
        """Return the nanoseconds by phase up to now, and now (JSON-like)."""
        self._switch(self._phase)
        return {"phases": dict(self._nanoseconds), "at_ns": self._since}

    def resume(self, state: Mapping[str, Any]) -> float:
        """Continue from `state`; return the seconds since then, which count as phase `lost`."""
        self._nanoseconds, self._phase, self._since = dict(state["phases"]), "lost", int(state["at_ns"])
        before = self._since
        self._switch("other")
        return (self._since - before) / 1e9

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Charge the time inside to phase `name`."""
        before = self._switch(name)
        try:
            yield
        finally:
            self._switch(before)

    def seconds(self) -> dict[str, float]:
        """Return the seconds by phase up to now."""
        return self.stop()[0]

    def stop(self) -> tuple[dict[str, float], int]:
        """Return the seconds by phase up to now, and now, by one reading: a busy machine may halt us between two."""
        self._switch(self._phase)
        return {name: value / 1e9 for name, value in self._nanoseconds.items()}, self._since

    def _switch(self, name: str) -> str:
        at = self._now()
        self._nanoseconds[self._phase] = self._nanoseconds.get(self._phase, 0) + at - self._since
        before, self._phase, self._since = self._phase, name, at
        return before


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def kernel_ns() -> int | None:
    """Return the kernel's monotonic time, nanoseconds, without Python's functions, which something may have replaced;
    None where it is not Linux's."""
    if sys.platform != "linux":
        return None
    found = _Timespec()
    ctypes.CDLL(None).clock_gettime(time.CLOCK_MONOTONIC, ctypes.byref(found))
    return int(found.seconds) * 10**9 + int(found.nanoseconds)


class Stamp(NamedTuple):
    """A reading of the log's clock between two of the kernel's; nanoseconds."""

    before: int | None
    at: int
    after: int | None

    @classmethod
    def of(cls, read: Callable[[], int]) -> Stamp:
        return cls(kernel_ns(), read(), kernel_ns())

    def counted(self, later: Stamp) -> tuple[float, float]:
        """Return the seconds that the log's clock and the kernel's counted until `later`. The kernel's are those in
        reach of its readings that are nearest: a busy machine may halt a process between two."""
        own = later.at - self.at
        if self.before is None or self.after is None or later.before is None or later.after is None:
            return own / 1e9, own / 1e9
        return own / 1e9, min(max(own, later.before - self.after), later.after - self.before) / 1e9


class HostTimer:
    """Times the steps of one block by the host's clock, for devices whose work is done when the call returns (CPU)."""

    def __init__(self, now: Callable[[], int] = time.perf_counter_ns) -> None:
        self._now = now
        self._marks: list[int] = []
        self._excluded_ns = 0

    def start(self) -> None:
        """Begin a block."""
        self._marks, self._excluded_ns = [self._now()], 0

    def mark_input(self) -> None:
        """Mark that the step's input is ready; `mark_step`: that the engine's step returned."""
        self._marks.append(self._now() - self._excluded_ns)

    mark_step = mark_input

    def exclude_pause(self) -> None:
        """Exclude the time since the last mark: it was neither input nor step (weights were hashed)."""
        self._excluded_ns = self._now() - self._marks[-1]

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the time inside, within a step."""
        begin = self._now()
        yield
        self._excluded_ns += self._now() - begin

    def read(self) -> tuple[list[float], list[float]]:
        """Return (step seconds, input seconds) of every step since `start`; on a GPU the caller synchronises before."""
        marks = self._marks
        steps = [(marks[i + 1] - marks[i]) / 1e9 for i in range(1, len(marks) - 1, 2)]
        inputs = [(marks[i + 1] - marks[i]) / 1e9 for i in range(0, len(marks) - 1, 2)]
        return steps, inputs


class DeviceTimer:
    """The same by events of a GPU's stream at step boundaries.

    The host runs ahead of the device, so host times mean nothing. Input seconds are the time that the device was idle
    between two steps, until the copy of the next batch was there and the host had launched something: nothing to speak
    of as long as the host is ahead.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._begins: list[Any] = []
        self._inputs: list[Any] = []
        self._ends: list[Any] = []
        self._pauses: list[tuple[int, Any, Any]] = []
        """Number of the step in this block, begin, end."""

    def start(self) -> None:
        self._begins, self._inputs, self._ends, self._pauses = [self._mark()], [], [], []

    def mark_input(self) -> None:
        self._inputs.append(self._mark())

    def mark_step(self) -> None:
        event = self._mark()
        self._ends.append(event)
        self._begins.append(event)

    def exclude_pause(self) -> None:
        if len(self._inputs) > len(self._ends):  # between the input of a step and the step
            self._inputs[-1] = self._mark()
        else:
            self._begins[-1] = self._mark()

    @contextmanager
    def paused(self) -> Iterator[None]:
        begin = self._mark()
        yield
        self._pauses.append((len(self._ends), begin, self._mark()))

    def read(self) -> tuple[list[float], list[float]]:
        # There is one more begin than end: the step after the last.
        steps = [ready.elapsed_time(end) / 1e3 for ready, end in zip(self._inputs, self._ends, strict=True)]
        for step, begin, end in self._pauses:
            steps[step] -= begin.elapsed_time(end) / 1e3
        return steps, [begin.elapsed_time(ready) / 1e3
                       for begin, ready in zip(self._begins, self._inputs, strict=False)]

    def _mark(self) -> Any:
        return devices.event(self._device, timed=True)


@dataclass(frozen=True, slots=True)
class RankClock:
    """The clock of one rank: the time, the phases, the step timer."""

    now: Callable[[], int]
    """Monotonic nanoseconds of the log."""
    watch: Stopwatch
    timer: HostTimer | DeviceTimer


def make_clock(
    device: str, virtual: Callable[[], int] | None, now: Callable[[], int] = time.monotonic_ns
) -> RankClock:
    """Return the clock of a rank on `device`.

    Args:
        virtual: an engine's own clock; replaces the machine's.
        now: the machine's clock, shifted if the trial was resumed after a reboot.
    """
    if virtual is not None:
        return RankClock(virtual, Stopwatch(virtual), HostTimer(virtual))
    return RankClock(now, Stopwatch(now), DeviceTimer(device) if devices.on_gpu(device) else HostTimer())
