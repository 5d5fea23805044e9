"""Which rows and columns of a matrix a rank holds, by dimension, for the first and the second product of a block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from repro.papers.tensor3d.grid import Dimension, Grid

Array = TypeVar("Array")


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


def row_parts(dimension: Dimension, grid: Grid) -> int:
    """Return into how many parts the rows of activations are cut."""
    return shares(dimension, grid, 0).x.row_parts


def column_parts(dimension: Dimension, grid: Grid) -> int:
    """Return into how many parts the columns between the two products of a block are cut."""
    return shares(dimension, grid, 0).y.column_parts
