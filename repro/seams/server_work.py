"""What the shards of an asynchronous run need to know besides the rules of the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerWork:
    """The work of one run."""

    tickets: int
    """Units of work of the whole run."""
    rate_of: Callable[[int], float]
    """Learning rate after that many updates."""
    grid: tuple[int, ...]
    """Versions of which a snapshot will be requested, ascending."""
    now: Callable[[], int]
    """Nanoseconds of the log's clock."""
