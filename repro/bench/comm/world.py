"""Compute the result of one world size from the ranks' lines: times, bounds, predictions and ratios."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from repro.bench.comm.result import (
    BASELINE,
    BenchLink,
    CommPoint,
    FittedModel,
    NotMeasured,
    PairedRatio,
    WorldResult,
    bus_factor,
    paired,
)
from repro.comm.algorithm import Algorithm
from repro.seams.plugin import Plugin

ITEMSIZE = 4
RankLine = Mapping[str, Any]


def tunes(plugin: Plugin) -> bool:
    """Return True if an algorithm measures its links at its start."""
    return isinstance(plugin, Algorithm) and type(plugin).start is not Algorithm.start


def world_result(
    world: int, lines: Sequence[RankLine], skipped: Iterable[RankLine], network: Mapping[str, Any] | None
) -> WorldResult:
    """Assemble the result.

    Args:
        lines: lines written by rank 0 (repro.bench.comm.rank).
        skipped: algorithms that were not started, with their reason.
    """
    measured = next(line for line in lines if line["kind"] == "links")
    links = read_links(measured["links"])
    rate = min(link.bytes_per_second for link in links)
    times = {(line["algorithm"], line["size"]): line["seconds"] for line in lines if line["kind"] == "point"}
    points = [
        _point(line, world, rate, times.get((BASELINE, line["size"])))
        for line in lines if line["kind"] == "point"
    ]
    missing = [*skipped, *(line for line in lines if line["kind"] == "skipped")]
    return WorldResult(
        world=world, bytes_per_second=rate, links=links, model=FittedModel.model_validate(measured["model"]),
        points=tuple(points),
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
    return tuple(_link(*ends, items) for ends, items in sorted(by_link.items()))


def _link(sender: int, receiver: int, items: Sequence[RankLine]) -> BenchLink:
    small, size = min(items, key=lambda item: item["size"]), max(item["size"] for item in items)
    best = min(seconds for item in items if item["size"] == size for seconds in item["seconds"])
    return BenchLink(sender=sender, receiver=receiver, latency_seconds=small["median"], bytes_per_second=size / best)


def _point(line: RankLine, world: int, rate: float, baseline: Sequence[float] | None) -> CommPoint:
    size, path = int(line["size"]), line["path_bytes"]
    return CommPoint(
        algorithm=line["algorithm"], size=size, seconds=tuple(line["seconds"]), calls=line["calls"],
        sent_bytes=line["sent_bytes"], formula_bytes=line["formula_bytes"],
        bound_seconds=bus_factor(world) * size / rate, own_seconds=None if path is None else path / rate,
        model_seconds=line["model_seconds"], ratio=_ratio(line, baseline),
    )


def _ratio(line: RankLine, baseline: Sequence[float] | None) -> PairedRatio | None:
    return None if baseline is None or line["algorithm"] == BASELINE else paired(line["seconds"], baseline)
