"""Groups of ranks along the sides of a grid, and the collectives on them; every group sends by the trial's comm.

Modes that watch tensors do not see inside a collective: its buffers are the process group's, not the layer's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import _disable_current_modes

from repro.papers.tensor3d.grid import Grid

# Names of torch before 2.13.
_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


@dataclass(frozen=True, slots=True)
class Line:
    """This rank's group along one side; `group` is None if it has one rank, which communicates nothing."""

    group: dist.ProcessGroup | None
    size: int
    index: int
    """Place of this rank in it."""

    def gather(self, shard: torch.Tensor) -> torch.Tensor:
        """Return the shards of all ranks, one below the other [size x rows, columns]; the shard itself if alone."""
        if self.group is None:
            return shard
        whole = shard.new_empty((self.size * shard.shape[0], *shard.shape[1:]))
        with _disable_current_modes():
            _gather(whole, shard, group=self.group)
        return whole

    def scatter(self, partial: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of the rows of the sum over all ranks; the tensor itself if alone."""
        if self.group is None:
            return partial
        own = partial.new_empty((partial.shape[0] // self.size, *partial.shape[1:]))
        with _disable_current_modes():
            _scatter(own, partial, group=self.group)
        return own

    def sum(self, partial: torch.Tensor) -> torch.Tensor:
        """Add the tensors of all ranks in place and return it."""
        if self.group is not None:
            with _disable_current_modes():
                dist.all_reduce(partial, group=self.group)
        return partial


@dataclass(frozen=True, slots=True)
class Lines:
    """The groups of one rank: along a row (its columns), along a column (its rows), through the layers."""

    row: Line
    column: Line
    layer: Line


def make_lines(grid: Grid, rank: int) -> Lines:
    """Return the groups of one rank; all ranks make all groups, in one order."""
    own = grid.place(rank)
    sides = (grid.rows, grid.columns, grid.depth)
    lines = []
    for axis in (1, 0, 2):
        others = [side for place, side in enumerate(sides) if place != axis]
        found = Line(None, 1, 0)
        for first in range(others[0]):
            for second in range(others[1]):
                fixed = [first, second]
                ranks = [grid.rank(*(*fixed[:axis], along, *fixed[axis:])) for along in range(sides[axis])]
                group = dist.new_group(ranks) if sides[axis] > 1 else None
                if rank in ranks and group is not None:
                    found = Line(group, sides[axis], own[axis])
        lines.append(found)
    return Lines(*lines)
