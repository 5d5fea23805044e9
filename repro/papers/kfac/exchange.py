"""The messages of K-FAC: over torch.distributed, so that the trial's algorithm carries and counts them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from repro.papers.kfac.placement import Grid


class Exchange:
    """The groups of one rank. Groups of all ranks are the default group; others are made here, by all ranks."""

    def __init__(self, grid: Grid, rank: int) -> None:
        self.grid, self.rank = grid, rank
        rows = [grid.row_of(place) for place in range(grid.workers)]
        columns = [grid.column(column) for column in range(grid.columns)]
        self.column = self._join(columns)
        """Ranks that precondition the same layers."""
        self.row = self._join(rows)
        """One rank of each column."""

    def _join(self, groups: Sequence[Sequence[int]]) -> Any:
        """Return this rank's group of several; None: it is alone in it."""
        found = None
        for ranks in groups:
            if len(ranks) == 1:
                continue
            group = dist.group.WORLD if len(ranks) == self.grid.world else dist.new_group(list(ranks))
            found = group if self.rank in ranks else found
        return found

    def average(self, flat: torch.Tensor) -> None:
        """Replace `flat` by its mean over all ranks."""
        if self.grid.world > 1:
            dist.all_reduce(flat)
            flat.div_(self.grid.world)

    def share_in_column(self, pieces: Mapping[int, torch.Tensor]) -> None:
        """Copy to all ranks of this column what each of them owns.

        Args:
            pieces: by owner, the same on all ranks of the column.
        """
        if self.column is not None:
            for owner, piece in pieces.items():
                dist.broadcast(piece, src=owner, group=self.column)

    def share_in_row(self, pieces: Mapping[int, torch.Tensor]) -> None:
        """Copy to all ranks of this row what each column computed.

        Args:
            pieces: by column.
        """
        if self.row is not None:
            ranks = self.grid.row_of(self.rank)
            for column, piece in pieces.items():
                dist.broadcast(piece, src=ranks[column], group=self.row)
