"""The result of a trial of kind measurement: times of its operations, what they processed, checks, further figures."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict

from repro.core.frozen import Frozen
from repro.seams.workload import Direction


class Checked(Frozen):
    """One check of the answers."""

    name: str
    error: float | None
    """Largest over ranks; None: not finite, so wrong."""
    limit: float

    @property
    def passed(self) -> bool:
        return self.error is not None and self.error <= self.limit


class Figured(Frozen):
    """One further figure, with its words, so that a reader needs no plug-in."""

    name: str
    value: float | None
    """Over ranks as its kind says; None: not finite."""
    title: str
    unit: str
    direction: Direction
    label: Literal["counted", "measured", "modelled"]
    """As in `repro.seams.measurement.FigureKind`."""


class Operation(Frozen):
    """Operations of one trial; the time of one is the MAX over ranks, seconds."""

    model_config = ConfigDict(extra="ignore")  # a later version may store more

    items: str
    """Plural noun of what an operation processes."""
    items_each: int
    """Items of one operation of all ranks."""
    count: int
    median_seconds: float
    mean_seconds: float
    p95_seconds: float
    straggler_seconds: float
    """Sum over operations of slowest minus fastest rank."""
    items_per_second: float
    checks: tuple[Checked, ...]
    figures: tuple[Figured, ...] = ()
    sent_bytes: float | None = None
    """By all ranks in one operation, as counted; None: not counted."""
    busiest_sent_bytes: float | None = None
    """The same of the rank that sends most."""
