"""Figures of compilation, from the events of a trial's log."""

from __future__ import annotations

from repro.core.events import Event
from repro.record.result.warned import CompiledLate


def read_filling(event: Event | None) -> float:
    """Return the seconds in which a trial with a warm cache had to fill it: before its clocks, so none has them."""
    return float(event.value["filling_seconds"]) if event is not None else 0.0


def read_seconds(event: Event | None) -> float | None:
    """Return the seconds of compilation of the slowest rank; None: nothing is compiled."""
    return max(float(rank["seconds"]) for rank in event.value["ranks"]) if event is not None else None


def late_graphs(event: Event | None) -> list[CompiledLate]:
    """Return the warning about graphs that were compiled after the warm-up, on the clock."""
    late = max((int(rank["graphs"]) for rank in event.value), default=0) if event is not None else 0
    if not late:
        return []
    seconds = max(float(rank["seconds"]) for rank in event.value)  # type: ignore[union-attr]  # late says so
    return [CompiledLate(graphs=late, seconds=seconds)]
