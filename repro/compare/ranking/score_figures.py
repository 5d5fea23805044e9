"""The parts of scores over workloads, as they are written to JSON."""

from __future__ import annotations

from repro.compare.figures import Estimate
from repro.core.frozen import Frozen

RULE = ("a contender's time on a workload is the median over its seeds, in which a seed that missed the target counts "
        "as infinite: if no more than half reach it, the workload is missed (AlgoPerf's rule)")


class Outcome(Frozen):
    """One contender on one workload."""

    contender: str
    workload: str
    suite: str
    cell_id: str
    cell: str
    n: int
    """Seeds whose end tells about the cell."""
    planned: int
    reached: int
    median: float | None
    """In the metric's unit; None: missed."""


class WorkloadScore(Frozen):
    """One workload."""

    name: str
    target: str
    origin: str
    """measured, emulated or simulated."""
    best: float | None
    """The least median; None if every contender missed it."""


class ContenderScore(Frozen):
    """One contender over all workloads."""

    name: str
    solved: int
    """Workloads that it did not miss."""
    score: Estimate
    """Area under its profile from 1 to `tau_max`, over tau_max - 1; the band is over resampled seeds."""
    best_share: float
    """Share of workloads on which no other contender is faster."""
    mean_ratio: Estimate | None
    """Geometric mean over workloads of its time over the reference's; None: withheld."""
    withheld: str
    """Reason for a missing mean, or for a missing interval."""
    profile: tuple[float, ...]
    """Share of workloads within each of `Scores.taus` of the best time."""
    low: tuple[float, ...]
    """Lower end of the band at each tau; () without a band."""
    high: tuple[float, ...]


class Scores(Frozen):
    """Contenders over workloads."""

    metric: str
    by: tuple[str, ...]
    reference: str
    tau_max: float
    level: float
    draws: int
    """Resamples of the seeds; 0: there are no bands."""
    taus: tuple[float, ...]
    workloads: tuple[WorkloadScore, ...]
    contenders: tuple[ContenderScore, ...]
    outcomes: tuple[Outcome, ...]
    left_out: tuple[tuple[str, str], ...]
    """(contender, reason): it is in no figure, also not as the best."""
    cautions: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def origins(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(item.origin for item in self.workloads))

    def within(self, contender: ContenderScore, tau: float) -> float | None:
        """Return the share of workloads within tau of the best; None if no profile is given there."""
        return contender.profile[self.taus.index(tau)] if tau in self.taus else None

    def outcome(self, contender: str, workload: str) -> Outcome:
        """Return one contender on one workload."""
        return next(item for item in self.outcomes if (item.contender, item.workload) == (contender, workload))
