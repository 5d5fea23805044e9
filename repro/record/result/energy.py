"""Energy of a trial; for every part the record says if a counter measured it or a model computed it."""

from __future__ import annotations

from typing import Literal

from repro.core.frozen import Frozen

Provenance = Literal["measured", "modelled"]


class Part(Frozen):
    """One kind of hardware."""

    joules: float
    provenance: Provenance
    how: str
    """For example `RAPL counters`, `load x 85 W (thermal design power)`."""


class Energy(Frozen):
    """Energy of the whole machine, from the launch of a trial's processes to their end; other work on it is included.

    Energy is measured by CodeCarbon in a separate process. Without a counter it is a model: a share of the processor's
    nominal power by its load, and a constant for memory by its size. Such a figure can at best compare runs on one
    machine.
    """

    joules: float
    provenance: Provenance
    """measured only if every part is."""
    parts: dict[str, Part]
    """By hardware: cpu, gpu, ram."""
    seconds: float
    tool: str
    observer_seconds: float
    """Processor time of the tracker itself meanwhile."""

    @property
    def watts(self) -> float | None:
        """Mean over the interval."""
        return self.joules / self.seconds if self.seconds > 0 else None

    @property
    def observer_share(self) -> float | None:
        """Of one core."""
        return self.observer_seconds / self.seconds if self.seconds > 0 else None
