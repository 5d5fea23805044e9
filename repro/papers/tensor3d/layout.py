"""The grid of ranks, and which rows and columns of a matrix a rank holds for the two products of a block."""

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


@dataclass(frozen=True, slots=True)
class Share:
    """One of `row_parts` x `column_parts` equal blocks of a matrix."""

    row: int
    row_parts: int
    column: int
    column_parts: int

    def shape(self, rows: int, columns: int) -> tuple[int, int]:
        """Return the shape of the block of a rows x columns matrix."""
        return rows // self.row_parts, columns // self.column_parts

    def slices(self, rows: int, columns: int) -> tuple[slice, slice]:
        """Return where the block is in a rows x columns matrix."""
        high, wide = self.shape(rows, columns)
        return slice(self.row * high, (self.row + 1) * high), slice(self.column * wide, (self.column + 1) * wide)


@dataclass(frozen=True, slots=True)
class Shares:
    """The blocks of one product Y = X A that a rank holds."""

    x: Share
    a: Share
    y: Share


WHOLE = Share(0, 1, 0, 1)


def shares(dimension: Dimension, grid: Grid, rank: int, second: bool = False) -> Shares:
    """Return the blocks of a rank for the first or the second product of a block; the first one's Y is the second's X.

    3d: X_il is cut by rows over j, A_lj by rows over i, Y_ij by rows over l; in the second product j and l change
    places.
    """
    i, j, layer = grid.place(rank)
    if dimension == "1d":
        cut = Share(0, 1, j, grid.columns)
        return Shares(cut, Share(j, grid.columns, 0, 1), WHOLE) if second else Shares(WHOLE, cut, cut)
    if dimension == "3d":
        q = grid.rows
        first, last = (layer, j) if second else (j, layer)
        return Shares(Share(i * q + first, q * q, last, q), Share(last * q + i, q * q, first, q),
                      Share(i * q + last, q * q, first, q))
    q, depth = grid.rows, grid.depth
    x = Share(i * depth + layer, q * depth, j, q)
    return Shares(x, Share(i, q, j, q), x)
