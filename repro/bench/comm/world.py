"""What the ranks wrote at one world size -> a result with bounds, predictions and ratios beside the times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from repro.bench.comm.result import BASELINE, Link, Missing, Model, Point, Ratio, WorldResult, bus_factor, paired
from repro.comm.algorithm import Algorithm
from repro.seams.plugin import Plugin

ITEMSIZE = 4
Line = Mapping[str, Any]


def tunes(plugin: Plugin) -> bool:
    """Whether an algorithm does more at its start than make its group: tries its links out."""
    return isinstance(plugin, Algorithm) and type(plugin).start is not Algorithm.start


def world_result(
    world: int, lines: Sequence[Line], skipped: Iterable[Line], network: Mapping[str, Any] | None
) -> WorldResult:
    """Put it together.

    Args:
        lines: what rank 0 wrote (repro.bench.comm.rank).
        skipped: those that were not started, with their reason.
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
        world=world, bytes_per_second=rate, links=links, model=Model.model_validate(measured["model"]),
        points=tuple(points),
        skipped=tuple(Missing(algorithm=item["algorithm"], size=item["size"], reason=item["reason"])
                      for item in missing),
        effective={line["algorithm"]: line["text"] for line in lines if line["kind"] == "effective"},
        network=dict(network) if network is not None else None,
    )


def read_links(transfers: Sequence[Line]) -> tuple[Link, ...]:
    """By link: the smallest message for the latency, the largest for the rate."""
    by_link: dict[tuple[int, int], list[Line]] = {}
    for item in transfers:
        by_link.setdefault((item["sender"], item["receiver"]), []).append(item)
    return tuple(_link(*ends, items) for ends, items in sorted(by_link.items()))


def _link(sender: int, receiver: int, items: Sequence[Line]) -> Link:
    small, large = min(items, key=lambda item: item["size"]), max(items, key=lambda item: item["size"])
    return Link(sender=sender, receiver=receiver, latency_seconds=small["median"],
                bytes_per_second=large["size"] / min(large["seconds"]))


def _point(line: Line, world: int, rate: float, baseline: Sequence[float] | None) -> Point:
    size, path = int(line["size"]), line["path_bytes"]
    return Point(
        algorithm=line["algorithm"], size=size, seconds=tuple(line["seconds"]), calls=line["calls"],
        sent_bytes=line["sent_bytes"], formula_bytes=line["formula_bytes"],
        bound_seconds=bus_factor(world) * size / rate, own_seconds=None if path is None else path / rate,
        model_seconds=line["model_seconds"], ratio=_ratio(line, baseline),
    )


def _ratio(line: Line, baseline: Sequence[float] | None) -> Ratio | None:
    return None if baseline is None or line["algorithm"] == BASELINE else paired(line["seconds"], baseline)
