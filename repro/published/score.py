"""The score of one system on one benchmark."""

from __future__ import annotations

from repro.core.frozen import Frozen


class Score(Frozen):
    """The score of one system on one benchmark."""

    minutes: float | None
    """Mean of the runs that were not dropped; None if none is left or too many runs missed."""
    valid: bool
    """True if the rules are met: enough runs, not too many without a time."""
    reason: str = ""
    """The reason if it is not valid."""
    runs: int
    """Number of logs, including refused ones."""
    required: int | None
    """Runs that the rules require; None: unknown benchmark."""
    failed: int
    """Runs without a time to target: missed, invalid or refused."""
    dropped: tuple[float, ...] = ()
    """Minutes of the runs dropped as fastest and slowest."""
    scaling_factor: float = 1.0
    """Set in review (`scaling.json`); included in `minutes`."""
