"""The lanes of a pool: what each ran and how fast it was, and the ratio of every contrast by lane, drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from repro.compare.figures import Bounds, ByNode

from ..axis import Axis, RatioMark, around_one, ratio_mark
from ..speedup import Ratio


@dataclass(frozen=True)
class NodeMark(RatioMark):
    """The ratio on one lane or node, or over all of them."""

    name: str
    path: str
    """In the comparison as JSON."""
    pairs: int = 0
    """0: over all."""

    @property
    def words(self) -> str:
        """Its tooltip."""
        ends = f" ({self.interval[0]} to {self.interval[1]})" if self.interval else ""
        return f"{self.name}: ratio {self.ratio}{ends}"


@dataclass(frozen=True, slots=True)
class NodeDrawing:
    """One contrast by lane."""

    row: Ratio
    nodes: ByNode
    axis: Axis
    marks: tuple[NodeMark, ...]
    """Of each node, and of blocks that ran alone; the last two are the mean over nodes and what is expected of another.
    """


def by_lane(rows: Sequence[Ratio]) -> list[NodeDrawing]:
    """Return the contrasts whose pairs ran on several lanes, in the order given."""
    return [_drawing(row, row.item.by_node) for row in rows if row.item.by_node is not None]


def _drawing(row: Ratio, nodes: ByNode) -> NodeDrawing:
    load = row.item.by_load
    drawn = (*nodes.nodes, *((load.alone, load.pooled) if load else ()))
    ends = [end for item in drawn if item.interval for end in (item.interval.low, item.interval.high)]
    ratios = [item.ratio for item in drawn]
    low, high, ahead = min(ratios), max(ratios), nodes.prediction
    axis = around_one([*ratios, ahead.low, ahead.high, *(min(max(end, low / 4), high * 4) for end in ends)])
    marks = [_mark(axis, item.ratio, item.interval, item.name, f"by_node.nodes.{index}", item.pairs)
             for index, item in enumerate(nodes.nodes)]
    if load is not None:
        marks += [_mark(axis, item.ratio, item.interval, item.name, f"by_load.{path}", item.pairs)
                  for path, item in (("alone", load.alone), ("pooled", load.pooled))]
    return NodeDrawing(row, nodes, axis, (
        *marks, _mark(axis, nodes.ratio, nodes.interval, f"mean over {nodes.noun}", "by_node"),
        _mark(axis, nodes.ratio, ahead, f"another {nodes.noun[:-1]}", "by_node.prediction")))


def _mark(axis: Axis, ratio: float, ends: Bounds | None, name: str, path: str, pairs: int = 0) -> NodeMark:
    return NodeMark(**vars(ratio_mark(axis, ratio, ends)), name=name, path=path, pairs=pairs)
