"""Step timing and phases: who may touch the clock, and only here."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol


class Stopwatch:
    """Wall time by phase. Time outside every phase is `other`, kept as carefully as the rest."""

    def __init__(self, now: Callable[[], int] = time.monotonic_ns) -> None:
        self._now, self._phase, self._since = now, "other", now()
        self._nanoseconds: dict[str, int] = {}

    def restart(self, at_ns: int) -> None:
        """Forget everything; the clock runs from `at_ns` in phase `other`."""
        self._nanoseconds, self._phase, self._since = {}, "other", at_ns

    def state(self) -> dict[str, Any]:
        """Nanoseconds by phase up to now, and now (JSON-like)."""
        self._switch(self._phase)
        return {"phases": dict(self._nanoseconds), "at_ns": self._since}

    def resume(self, state: Mapping[str, Any]) -> float:
        """Go on from `state`; what has passed since is `lost`, in seconds."""
        self._nanoseconds, self._phase, self._since = dict(state["phases"]), "lost", int(state["at_ns"])
        before = self._since
        self._switch("other")
        return (self._since - before) / 1e9

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Charge what happens inside to `name`."""
        before = self._switch(name)
        try:
            yield
        finally:
            self._switch(before)

    def seconds(self) -> dict[str, float]:
        """Seconds by phase up to now."""
        self._switch(self._phase)
        return {name: value / 1e9 for name, value in self._nanoseconds.items()}

    def _switch(self, name: str) -> str:
        at = self._now()
        self._nanoseconds[self._phase] = self._nanoseconds.get(self._phase, 0) + at - self._since
        before, self._phase, self._since = self._phase, name, at
        return before


class StepTimer(Protocol):
    """Times the steps of one block; read only when the block is over."""

    def start(self) -> None: ...
    def fed(self) -> None:
        """The step's input is ready."""

    def stepped(self) -> None:
        """The engine's step returned."""

    def resumed(self) -> None:
        """What happened since the last mark was neither input nor step (weights were hashed): not to be counted."""

    def read(self) -> tuple[list[float], list[float]]:
        """(step seconds, input seconds) of every step since `start`; on a GPU the caller has synchronised before."""


class HostTimer:
    """perf-counter times: right where the work is done when the call returns (CPU)."""

    def __init__(self, now: Callable[[], int] = time.perf_counter_ns) -> None:
        self._now = now
        self._marks: list[int] = []
        self._left_out = 0

    def start(self) -> None:
        self._marks, self._left_out = [self._now()], 0

    def fed(self) -> None:
        self._marks.append(self._now() - self._left_out)

    stepped = fed

    def resumed(self) -> None:
        self._left_out = self._now() - self._marks[-1]

    def read(self) -> tuple[list[float], list[float]]:
        marks = self._marks
        steps = [(marks[i + 1] - marks[i]) / 1e9 for i in range(1, len(marks) - 1, 2)]
        inputs = [(marks[i + 1] - marks[i]) / 1e9 for i in range(0, len(marks) - 1, 2)]
        return steps, inputs


class CudaTimer:
    """CUDA events at step boundaries. A step's time runs from boundary to boundary on the device, its input included
    (the host runs ahead, so host times would say nothing); input seconds are therefore reported as 0."""

    def __init__(self) -> None:
        self._begins: list[Any] = []
        self._ends: list[Any] = []

    def start(self) -> None:
        self._begins, self._ends = [self._mark()], []

    def fed(self) -> None:
        """Nothing to mark: input and step overlap on the device."""

    def stepped(self) -> None:
        event = self._mark()
        self._ends.append(event)
        self._begins.append(event)

    def resumed(self) -> None:
        self._begins[-1] = self._mark()

    def read(self) -> tuple[list[float], list[float]]:
        # One more begins than has ended: the step after the last.
        steps = [begin.elapsed_time(end) / 1e3 for begin, end in zip(self._begins, self._ends, strict=False)]
        return steps, [0.0] * len(steps)

    @staticmethod
    def _mark() -> Any:
        import torch

        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


def step_timer(device: str, virtual: Callable[[], int] | None) -> StepTimer:
    """The timer that suits the device; `virtual` is an engine's own clock."""
    if virtual is not None:
        return HostTimer(virtual)
    return CudaTimer() if device.startswith("cuda") else HostTimer()
