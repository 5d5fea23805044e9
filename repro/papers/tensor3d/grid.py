"""How ranks are arranged, and how a matrix is cut over them, for 1-D, 2-D, 2.5-D and 3-D tensor parallelism."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Dimension = Literal["1d", "2d", "2.5d", "3d"]


@dataclass(frozen=True, slots=True)
class Grid:
    """Sides of the grid: `depth` layers of `rows` x `columns` ranks; rank = (row x columns + column) x depth + layer.

    1d: 1 x p x 1. 2d: q x q x 1, p = q^2. 2.5d: q x q x d, p = q^2 d with 1 <= d <= q. 3d: q x q x q, p = q^3.
    """

    rows: int
    columns: int
    depth: int

    @property
    def ranks(self) -> int:
        return self.rows * self.columns * self.depth

    def place(self, rank: int) -> tuple[int, int, int]:
        """Return (row, column, layer) of a rank."""
        rest, layer = divmod(rank, self.depth)
        row, column = divmod(rest, self.columns)
        return row, column, layer

    def rank(self, row: int, column: int, layer: int) -> int:
        return (row * self.columns + column) * self.depth + layer


def why_no_grid(dimension: Dimension, processes: int) -> str:
    """Return why this many processes make no such grid, in one sentence; "" if they do."""
    if _find(dimension, processes) is not None:
        return ""
    wanted = {"2d": "a square", "2.5d": "q^2 d with 1 <= d <= q", "3d": "a cube", "1d": "any number"}[dimension]
    fits = [count for count in range(1, 65) if _find(dimension, count) is not None]
    near = ", ".join(map(str, sorted(fits, key=lambda count: (abs(count - processes), count))[:2]))
    return f"{processes} processes are not {wanted}, which {dimension} needs; use one of: {near}"


def grid_of(dimension: Dimension, processes: int) -> Grid:
    """Return the grid; `why_no_grid` says for which numbers there is one."""
    found = _find(dimension, processes)
    assert found is not None, why_no_grid(dimension, processes)
    return found


def _find(dimension: Dimension, processes: int) -> Grid | None:
    if dimension == "1d":
        return Grid(1, processes, 1)
    if dimension == "2d":
        side = math.isqrt(processes)
        return Grid(side, side, 1) if side ** 2 == processes else None
    if dimension == "3d":
        side = round(processes ** (1 / 3))
        return Grid(side, side, side) if side ** 3 == processes else None
    # The largest side with a depth of at most as many layers: as near to a cube as the number allows.
    for side in range(1, math.isqrt(processes) + 1):
        depth, rest = divmod(processes, side ** 2)
        if not rest and 1 <= depth <= side:
            return Grid(side, side, depth)
    return None
