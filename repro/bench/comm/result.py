"""Result of `repro bench comm`: every raw time as the ranks wrote it, and the figures computed from them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any, Literal

from pydantic import Field

from repro import stats
from repro.comm.algorithm import Algorithm
from repro.core.frozen import Frozen
from repro.seams.plugin import Plugin

BASELINE = "backend"
ITEMSIZE = 4
RankLine = Mapping[str, Any]
"""A line that rank 0 wrote (`repro.bench.comm.rank`)."""
GIGA = 1e9
FAR_OFF = 0.1
"""A link whose measured rate differs from its stated one by more than this share is named."""


class PairedRatio(Frozen):
    """One algorithm's time over another's, paired by repetition."""

    value: float
    low: float
    high: float
    level: float
    pairs: int


class BenchLink(Frozen):
    """Measured round trips between two ranks, before any collective."""

    sender: int
    receiver: int
    latency_seconds: float
    """Half of a round trip of the smallest message."""
    bytes_per_second: float
    """Best of the large messages: other work makes a link look slower, never faster."""


class FittedModel(Frozen):
    """Fitted cost model (repro.comm.cost_model)."""

    alpha: float
    beta: float
    gamma: float
    samples: int
    error: float
    """Median absolute relative error over the fitted samples."""


class CommPoint(Frozen):
    """One algorithm at one size."""

    algorithm: str
    size: int
    """Size of every rank's buffer in bytes."""
    seconds: tuple[float, ...]
    """Time of one call on the slowest rank, by repetition."""
    calls: int
    """Calls timed together in one repetition."""
    sent_bytes: int | None
    """Bytes of the busiest rank, counted by its meter; None: the backend does not count."""
    formula_bytes: int | None
    """Bytes of the busiest rank by the algorithm's schedule."""
    bound_seconds: float
    """2(p-1)/p S/B: no all-reduce over links of rate B can be faster (Patarasuk and Yuan, 2009)."""
    own_seconds: float | None
    """Bytes on the algorithm's own path over B, without latency; None: no formula."""
    model_seconds: float | None
    """Modelled: predicted by the fitted cost model."""
    ratio: PairedRatio | None
    """Ratio to the backend's all-reduce; None for itself and for a single pair."""

    @property
    def median_seconds(self) -> float:
        return median(self.seconds)

    @property
    def algbw(self) -> float:
        """Algorithm bandwidth S/t, GB/s (nccl-tests)."""
        return self.size / self.median_seconds / GIGA

    def busbw(self, world: int) -> float:
        """Return algbw x 2(p-1)/p, GB/s (nccl-tests): comparable with the link's rate at any world size."""
        return self.algbw * bus_factor(world)

    @property
    def to_bound(self) -> float:
        return self.median_seconds / self.bound_seconds

    @property
    def to_own(self) -> float | None:
        return self.median_seconds / self.own_seconds if self.own_seconds else None

    @property
    def model_error(self) -> float | None:
        """Relative error (predicted - measured) / measured."""
        return None if self.model_seconds is None else self.model_seconds / self.median_seconds - 1.0


class NotMeasured(Frozen):
    """A requested algorithm that was not measured, with the reason."""

    algorithm: str
    size: int | None
    """None: not at any size."""
    reason: str


class WorldResult(Frozen):
    """All algorithms and sizes at one world size."""

    world: int
    bytes_per_second: float
    """B, the rate of the slowest link."""
    links: tuple[BenchLink, ...]
    model: FittedModel
    points: tuple[CommPoint, ...]
    skipped: tuple[NotMeasured, ...]
    effective: dict[str, str] = Field(default_factory=dict)
    """By algorithm: description of what ran, read from its group."""
    network: dict[str, Any] | None = None
    """Figures of an emulated network: rates stated and measured, bytes counted by the kernel."""

    @property
    def stated_bytes_per_second(self) -> float | None:
        """Stated rate of the slowest link in use, frame headers included; None: no link has a stated rate."""
        rates = self._stated_by_rank()
        return min(rates) if rates else None

    @property
    def far_off(self) -> list[tuple[BenchLink, float]]:
        """Links between nodes whose measured rate is far off the stated one, which follows each, bytes per second."""
        rates, nodes = self._stated_by_rank(), self.network["node_of_rank"] if self.network else ()
        found = [(link, min(rates[link.sender], rates[link.receiver])) for link in self.links
                 if rates and nodes[link.sender] != nodes[link.receiver]]
        return [(link, stated) for link, stated in found if abs(link.bytes_per_second / stated - 1) > FAR_OFF]

    @property
    def below_bound(self) -> list[CommPoint]:
        """Points with a median below their bound, which no links of rate B allow: the bound is wrong there."""
        return [point for point in self.points if point.to_bound < 1]

    def to_stated(self, point: CommPoint) -> float | None:
        """Return a point's median over 2(p-1)/p S / stated rate; None: no link has a stated rate."""
        stated = self.stated_bytes_per_second
        return point.median_seconds * stated / (bus_factor(self.world) * point.size) if stated else None

    def _stated_by_rank(self) -> list[float]:
        """Return the stated bytes per second of every rank's node; empty if none is stated."""
        if self.network is None:
            return []
        stated = self.network["stated_bits_per_second"]
        return [stated[node] / 8 for node in self.network["node_of_rank"]]

    @property
    def algorithms(self) -> list[str]:
        """Algorithms in the requested order."""
        return list(dict.fromkeys(point.algorithm for point in self.points))

    @property
    def sizes(self) -> list[int]:
        return sorted({point.size for point in self.points})

    def of(self, algorithm: str) -> dict[int, CommPoint]:
        """Return the points of `algorithm` by size."""
        return {point.size: point for point in self.points if point.algorithm == algorithm}

    def overall(self, algorithm: str) -> PairedRatio | None:
        """Return the geometric mean over sizes of the ratio to the backend, paired by repetition."""
        ours, theirs = self.of(algorithm), self.of(BASELINE)
        sizes = sorted(ours.keys() & theirs.keys())
        if algorithm == BASELINE or not sizes:
            return None
        return paired(_over_sizes(ours[size] for size in sizes), _over_sizes(theirs[size] for size in sizes))

    def behind_best(self, algorithm: str) -> tuple[float, int]:
        """Return (largest ratio of its median to the fastest algorithm's at the same size, that size)."""
        best = {size: min(point.median_seconds for point in self.points if point.size == size) for size in self.sizes}
        return max((point.median_seconds / best[size], size) for size, point in self.of(algorithm).items())


class CommOutcome(Frozen):
    """Result of one run of the benchmark."""

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

    def as_json(self) -> dict[str, Any]:
        """Return everything, with the derived figures next to the raw ones."""
        data = self.model_dump(mode="json", by_alias=True)
        for found, world in zip(data["worlds"], self.worlds, strict=True):
            for item, point in zip(found["points"], world.points, strict=True):
                item |= figures(point, world.world) | {"to_stated": world.to_stated(point)}
            found |= {"stated_bytes_per_second": world.stated_bytes_per_second, "far_off_links": [
                {**link.model_dump(mode="json"), "stated_bytes_per_second": stated} for link, stated in world.far_off],
                "below_bound": [{"algorithm": point.algorithm, "size": point.size, "to_bound": point.to_bound,
                                 "to_stated": world.to_stated(point)} for point in world.below_bound]}
            found["overall"] = {
                name: ratio.model_dump(mode="json") if (ratio := world.overall(name)) else None
                for name in world.algorithms
            }
        return data


def figures(point: CommPoint, world: int) -> dict[str, float | None]:
    """Compute the derived figures of a point."""
    return {
        "median_seconds": point.median_seconds, "algbw": point.algbw, "busbw": point.busbw(world),
        "to_bound": point.to_bound, "to_own": point.to_own, "model_error": point.model_error,
    }


def bus_factor(world: int) -> float:
    """Return the factor between algorithm and bus bandwidth of an all-reduce, as in nccl-tests."""
    return 2 * (world - 1) / world


def paired(ours: Iterable[float], theirs: Iterable[float]) -> PairedRatio | None:
    """Return the ratio with its interval; None for fewer than two pairs."""
    above, below = list(ours), list(theirs)
    pairs = min(len(above), len(below))
    if pairs < 2:
        return None
    value, interval = stats.paired_ratio(above[:pairs], below[:pairs])
    return PairedRatio(value=value, low=interval.low, high=interval.high, level=interval.level, pairs=pairs)


def _over_sizes(points: Iterable[CommPoint]) -> list[float]:
    """Return the geometric mean over sizes of each repetition that all sizes have."""
    rows = list(zip(*(point.seconds for point in points), strict=False))
    return [math.exp(sum(map(math.log, row)) / len(row)) for row in rows]


def tunes(plugin: Plugin) -> bool:
    """Return True if an algorithm measures its links at its start."""
    return isinstance(plugin, Algorithm) and type(plugin).start is not Algorithm.start


def world_result(
    world: int, lines: Sequence[RankLine], skipped: Iterable[RankLine], network: Mapping[str, Any] | None
) -> WorldResult:
    """Assemble the result.

    Args:
        lines: lines written by rank 0.
        skipped: algorithms that were not started, with their reason.
    """
    measured = next(line for line in lines if line["kind"] == "links")
    links = read_links(measured["links"])
    rate = min(link.bytes_per_second for link in links)
    timed = [line for line in lines if line["kind"] == "point"]
    baseline = {line["size"]: line["seconds"] for line in timed if line["algorithm"] == BASELINE}
    missing = [*skipped, *(line for line in lines if line["kind"] == "skipped")]
    return WorldResult(
        world=world, bytes_per_second=rate, links=links, model=FittedModel.model_validate(measured["model"]),
        points=tuple(_point(line, world, rate, baseline.get(line["size"])) for line in timed),
        skipped=tuple(NotMeasured(algorithm=item["algorithm"], size=item["size"], reason=item["reason"])
                      for item in missing),
        effective={line["algorithm"]: line["text"] for line in lines if line["kind"] == "effective"},
        network=dict(network) if network is not None else None,
    )


def read_links(transfers: Sequence[RankLine]) -> tuple[BenchLink, ...]:
    """Compute every link: latency from the smallest message, rate from the largest."""
    by_link: dict[tuple[int, int], list[RankLine]] = {}
    for item in transfers:
        by_link.setdefault((item["sender"], item["receiver"]), []).append(item)
    found = []
    for (sender, receiver), items in sorted(by_link.items()):
        small, size = min(items, key=lambda item: item["size"]), max(item["size"] for item in items)
        best = min(seconds for item in items if item["size"] == size for seconds in item["seconds"])
        found.append(BenchLink(sender=sender, receiver=receiver, latency_seconds=small["median"],
                               bytes_per_second=size / best))
    return tuple(found)


def _point(line: RankLine, world: int, rate: float, baseline: Sequence[float] | None) -> CommPoint:
    size, path = int(line["size"]), line["path_bytes"]
    return CommPoint(
        algorithm=line["algorithm"], size=size, seconds=tuple(line["seconds"]), calls=line["calls"],
        sent_bytes=line["sent_bytes"], formula_bytes=line["formula_bytes"],
        bound_seconds=bus_factor(world) * size / rate, own_seconds=None if path is None else path / rate,
        model_seconds=line["model_seconds"],
        ratio=None if baseline is None or line["algorithm"] == BASELINE else paired(line["seconds"], baseline),
    )
