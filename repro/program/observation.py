"""Lines that a program printed, and what a reader sees in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Seen = Literal["start", "stop", "step", "evaluation"]
"""start, stop: the program says that its training began or ended. step: it reports progress without a quality.
evaluation: it reports the quality."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of output, with the time at which this harness received its end."""

    text: str
    """Without its newline; bytes that are no UTF-8 are replaced."""
    arrived_ns: int
    """Monotonic nanoseconds of this machine."""
    read: int
    """Number of the read that brought its end: lines of one read share one arrival time, at which the last of them was
    just printed; how much earlier the others were, it does not tell."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One statement of a program about its training."""

    seen: Seen
    arrived_ns: int
    read: int
    step: int | None = None
    """Optimizer steps so far."""
    samples: int | None = None
    """Training samples so far."""
    epochs: float | None = None
    value: float | None = None
    """The quality; nan and infinities are values."""
    own_seconds: float | None = None
    """The program's own clock: seconds of training so far, by its own account. None: it states none."""
    own_ns: int | None = None
    """Monotonic nanoseconds at which the program says this happened; None: it does not say."""


class OutputProblem(Exception):
    """A statement of a program that cannot be right; the text says what and where."""
