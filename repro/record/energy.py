"""Energy of a trial: what it came to, and for every part whether a counter said so or a model."""

from __future__ import annotations

from typing import Literal

from repro.core.frozen import Frozen

Provenance = Literal["measured", "modelled"]
OBSERVER_LIMIT = 0.005
"""Share of the trial's time that the tracker may take of one core before it is a warning (as for logging)."""


class Part(Frozen):
    """One kind of hardware."""

    joules: float
    provenance: Provenance
    how: str
    """For example `RAPL counters`, `load x 85 W (thermal design power)`."""


class Energy(Frozen):
    """Of the whole machine, from the launch of a trial's processes to their end; other work on it is in it.

    The tracker is CodeCarbon's. Where the machine has no counter it is a model: a share of the processor's nominal
    power by its load, and a constant for memory by its size. Such a figure compares runs on one machine at best.
    """

    joules: float
    provenance: Provenance
    """measured only where every part is."""
    parts: dict[str, Part]
    """By hardware: cpu, gpu, ram."""
    seconds: float
    tool: str
    observer_seconds: float
    """Processor time that the tracker itself took meanwhile."""

    @property
    def watts(self) -> float | None:
        """Mean over the interval."""
        return self.joules / self.seconds if self.seconds > 0 else None

    @property
    def observer_share(self) -> float | None:
        """Of one core."""
        return self.observer_seconds / self.seconds if self.seconds > 0 else None
