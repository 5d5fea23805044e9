"""What `repro bench comm` found: every raw time, and the figures that follow from them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import median
from typing import Any, Literal

from pydantic import Field

from repro import stats
from repro.core.frozen import Frozen

BASELINE = "backend"
GIGA = 1e9


class Ratio(Frozen):
    """One algorithm's time over another's, paired by repetition."""

    value: float
    low: float
    high: float
    level: float
    pairs: int


class Link(Frozen):
    """A transfer between two ranks, there and back, before any collective ran."""

    sender: int
    receiver: int
    latency_seconds: float
    """Half a round trip of the smallest message."""
    bytes_per_second: float
    """Best of the largest messages: nothing makes a link faster than it is, and much makes it look slower."""


class Model(Frozen):
    """The fitted cost model (repro.comm.model)."""

    alpha: float
    beta: float
    gamma: float
    samples: int
    error: float
    """Median size of the relative error over the samples it was fitted to."""


class Point(Frozen):
    """One algorithm at one size."""

    algorithm: str
    size: int
    """Bytes of every rank's buffer."""
    seconds: tuple[float, ...]
    """Of one call, the slowest rank's, by repetition."""
    calls: int
    """Calls that one repetition timed together."""
    sent_bytes: int | None
    """Of the busiest rank, as its meter counted; None: the backend does not count."""
    formula_bytes: int | None
    """The same by the algorithm's closed form."""
    bound_seconds: float
    """2(p-1)/p S/B: no all-reduce over links of rate B can be faster (Patarasuk and Yuan, 2009)."""
    own_seconds: float | None
    """The bytes on the algorithm's own path over B, latency left out; None: no formula."""
    model_seconds: float | None
    """Modelled: what the fitted cost model predicts."""
    ratio: Ratio | None
    """To the backend's own all-reduce; None for itself and where one pair only was measured."""

    @property
    def median_seconds(self) -> float:
        return median(self.seconds)

    @property
    def algbw(self) -> float:
        """S/t, GB/s (nccl-tests)."""
        return self.size / self.median_seconds / GIGA

    def busbw(self, world: int) -> float:
        """algbw x 2(p-1)/p, GB/s (nccl-tests): comparable with the link's rate whatever the world size."""
        return self.algbw * bus_factor(world)

    @property
    def to_bound(self) -> float:
        return self.median_seconds / self.bound_seconds

    @property
    def to_own(self) -> float | None:
        return self.median_seconds / self.own_seconds if self.own_seconds else None

    @property
    def model_error(self) -> float | None:
        """(predicted - measured) / measured."""
        return None if self.model_seconds is None else self.model_seconds / self.median_seconds - 1.0


class Missing(Frozen):
    """What was asked for and not measured."""

    algorithm: str
    size: int | None
    """None: at no size."""
    reason: str


class WorldResult(Frozen):
    """All algorithms and sizes at one world size."""

    world: int
    bytes_per_second: float
    """B: of the slowest link."""
    links: tuple[Link, ...]
    model: Model
    points: tuple[Point, ...]
    skipped: tuple[Missing, ...]
    effective: dict[str, str] = Field(default_factory=dict)
    """By algorithm: what ran, read back from its group."""
    network: dict[str, Any] | None = None
    """What an emulated network says of itself: rates stated and measured, bytes counted by the kernel."""

    @property
    def algorithms(self) -> list[str]:
        """In the order in which they were asked for."""
        return list(dict.fromkeys(point.algorithm for point in self.points))

    @property
    def sizes(self) -> list[int]:
        return sorted({point.size for point in self.points})

    def of(self, algorithm: str) -> dict[int, Point]:
        """Its points by size."""
        return {point.size: point for point in self.points if point.algorithm == algorithm}

    def overall(self, algorithm: str) -> Ratio | None:
        """Geometric mean over sizes of the ratio to the backend, paired by repetition."""
        ours, theirs = self.of(algorithm), self.of(BASELINE)
        sizes = sorted(ours.keys() & theirs.keys())
        if algorithm == BASELINE or not sizes:
            return None
        return paired(_over_sizes(ours[size] for size in sizes), _over_sizes(theirs[size] for size in sizes))

    def behind_best(self, algorithm: str) -> tuple[float, int] | None:
        """(largest ratio of its median to the fastest algorithm's at the same size, that size)."""
        best = {size: min(point.median_seconds for point in self.points if point.size == size) for size in self.sizes}
        found = [(point.median_seconds / best[size], size) for size, point in self.of(algorithm).items()]
        return max(found, default=None)


class CommOutcome(Frozen):
    """One run of the benchmark."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    origin: str
    """measured (this machine's loopback) or emulated (its shaped links)."""
    place: str
    launcher: dict[str, Any]
    cores: int
    load: tuple[float, float]
    """Load average over a minute, before and after."""
    repetitions: int
    seconds: float
    seed: int
    worlds: tuple[WorldResult, ...]
    mpi: tuple[MpiResult, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Everything, with the derived figures beside the raw ones."""
        data = self.model_dump(mode="json", by_alias=True)
        for found, world in zip(data["worlds"], self.worlds, strict=True):
            for item, point in zip(found["points"], world.points, strict=True):
                item |= figures(point, world.world)
            found["overall"] = {
                name: ratio.model_dump(mode="json") if (ratio := world.overall(name)) else None
                for name in world.algorithms
            }
        return data


class MpiResult(Frozen):
    """Open MPI's MPI_Allreduce over TCP on the same ranks, or why there is none."""

    world: int
    version: str = ""
    seconds: dict[int, tuple[float, ...]] = Field(default_factory=dict)
    """Size -> seconds a call, the slowest rank's, by repetition."""
    problem: str = ""


def figures(point: Point, world: int) -> dict[str, float | None]:
    """What follows from a point's times."""
    return {
        "median_seconds": point.median_seconds, "algbw": point.algbw, "busbw": point.busbw(world),
        "to_bound": point.to_bound, "to_own": point.to_own, "model_error": point.model_error,
    }


def bus_factor(world: int) -> float:
    """nccl-tests' factor between algorithm and bus bandwidth of an all-reduce."""
    return 2 * (world - 1) / world


def paired(ours: Iterable[float], theirs: Iterable[float]) -> Ratio | None:
    """The ratio with its interval; None where there are not two pairs."""
    above, below = list(ours), list(theirs)
    pairs = min(len(above), len(below))
    if pairs < 2:
        return None
    value, interval = stats.paired_ratio(above[:pairs], below[:pairs])
    return Ratio(value=value, low=interval.low, high=interval.high, level=interval.level, pairs=pairs)


def _over_sizes(points: Iterable[Point]) -> list[float]:
    """Geometric mean over sizes of each repetition that all sizes have."""
    rows = list(zip(*(point.seconds for point in points), strict=False))
    return [math.exp(sum(map(math.log, row)) / len(row)) for row in rows]


CommOutcome.model_rebuild()
