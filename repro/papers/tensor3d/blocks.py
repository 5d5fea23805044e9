"""The blocks that are measured, on a rank's shares and dense, with their groups and products; no biases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.utils._python_dispatch import _disable_current_modes

from repro.papers.tensor3d.formula import Size
from repro.papers.tensor3d.layout import Dimension, Grid

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


Lines = tuple[Line, Line, Line]
"""The groups of one rank: along a row (its columns), along a column (its rows), through the layers."""


def make_lines(grid: Grid, rank: int) -> Lines:
    """Return the groups of one rank; all ranks make all groups, in one order."""
    own = grid.place(rank)
    sides = (grid.rows, grid.columns, grid.depth)
    lines = list[Line]()
    for axis in (1, 0, 2):
        found = Line(None, 1, 0)
        for fixed in product(*(range(side) for place, side in enumerate(sides) if place != axis)):
            ranks = [grid.rank(*(*fixed[:axis], along, *fixed[axis:])) for along in range(sides[axis])]
            group = dist.new_group(ranks) if sides[axis] > 1 else None
            if rank in ranks and group is not None:
                found = Line(group, sides[axis], own[axis])
        lines.append(found)
    row, column, layer = lines
    return row, column, layer


class Cube(torch.autograd.Function):
    """3-D product (Bian et al., 2021, arXiv:2105.14450, algorithm 1); with lines of one rank also others.

    X_il is cut by rows over line `x`, A_lj by rows over line `a`: gather both, multiply, add along line `y` and keep
    this rank's rows of the sum.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, a: torch.Tensor, lines: tuple[Line, Line, Line]) -> torch.Tensor:
        ctx.save_for_backward(x, a)
        ctx.lines = lines
        along_x, along_a, along_y = lines
        partial = along_x.gather(x) @ along_a.gather(a)
        return along_y.scatter(partial)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x, a = ctx.saved_tensors
        along_x, along_a, along_y = ctx.lines
        whole = along_y.gather(dy.contiguous())
        dx = along_x.scatter(whole @ along_a.gather(a).t())
        da = along_a.scatter(along_x.gather(x).t() @ whole)
        return dx, da, None


class Square(torch.autograd.Function):
    """2-D product (SUMMA; van de Geijn and Watts, 1997; Optimus, Xu et al., 2021), and a layer of the 2.5-D one.

    Rank (i, j) has X_ij and A_ij. The blocks of its row of X and of its column of A are gathered at once instead of
    broadcast one after the other: the same bytes in fewer messages, for the memory of the gathered blocks. In 2.5-D
    (Solomonik and Demmel, 2011; Tesseract, Wang et al., 2021) layers have rows of X of their own and the same A,
    whose gradients are added through the layers.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, a: torch.Tensor, lines: tuple[Line, Line, Line]) -> torch.Tensor:
        ctx.save_for_backward(x, a)
        ctx.lines = lines
        row, column, _ = lines
        xs, blocks = row.gather(x).view(row.size, *x.shape), column.gather(a).view(column.size, *a.shape)
        y = xs[0] @ blocks[0]
        for own, block in zip(xs[1:], blocks[1:], strict=True):
            y.addmm_(own, block)
        return y

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x, a = ctx.saved_tensors
        row, column, layer = ctx.lines
        dx = row.scatter(_each(dy, column.gather(a).view(column.size, *a.shape)))
        da = column.scatter(_each_transposed(row.gather(x).view(row.size, *x.shape), dy))
        return dx, layer.sum(da), None


def _each(dy: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    """Return dY A_l^T for every block, one below the other."""
    found = dy.new_empty((len(blocks), dy.shape[0], blocks.shape[1]))
    for part, block in zip(found, blocks, strict=True):
        torch.mm(dy, block.t(), out=part)
    return found.view(-1, blocks.shape[1])


def _each_transposed(xs: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    """Return X_l^T dY for every block, one below the other."""
    found = dy.new_empty((len(xs), xs.shape[2], dy.shape[1]))
    for part, own in zip(found, xs, strict=True):
        torch.mm(own.t(), dy, out=part)
    return found.view(-1, dy.shape[1])


class Columns(torch.autograd.Function):
    """1-D product with A cut by columns (Shoeybi et al., 2019): every rank has X and gets its columns of Y."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, a: torch.Tensor, line: Line) -> torch.Tensor:
        ctx.save_for_backward(x, a)
        ctx.line = line
        return x @ a

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x, a = ctx.saved_tensors
        dx = ctx.line.sum(dy @ a.t())
        return dx, x.t() @ dy, None


class Rows(torch.autograd.Function):
    """1-D product with A cut by rows: every rank has its columns of X, and gets the whole Y."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, a: torch.Tensor, line: Line) -> torch.Tensor:
        ctx.save_for_backward(x, a)
        return line.sum(x @ a)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x, a = ctx.saved_tensors
        return dy @ a.t(), x.t() @ dy, None


Layer = Literal["linear", "mlp", "attention"]


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a block."""

    layer: Layer
    batch: int
    sequence: int
    hidden: int
    heads: int

    @property
    def rows(self) -> int:
        """Rows of activations: tokens."""
        return self.batch * self.sequence

    @property
    def between(self) -> int:
        """Columns after the first product: 4 hidden, or query, key and value of every head."""
        return 3 * self.hidden if self.layer == "attention" else 4 * self.hidden

    def products(self) -> tuple[Size, ...]:
        """Return the products of the block, in order."""
        first = Size(self.rows, self.hidden, self.between)
        if self.layer == "linear":
            return (first,)
        inner = self.hidden if self.layer == "attention" else self.between
        return first, Size(self.rows, inner, self.hidden, second=True)


def _between(shape: Shape, first: torch.Tensor) -> torch.Tensor:
    """Return the input of the second product.

    Args:
        first: of an attention block query, key and value of one head after the other, for whole sequences and heads
            [tokens, heads x 3 x columns of a head].
    """
    if shape.layer != "attention":
        return functional.gelu(first)
    tokens = first.shape[0]
    parts = first.view(tokens // shape.sequence, shape.sequence, -1, 3, shape.hidden // shape.heads)
    query, key, value = parts.permute(3, 0, 2, 1, 4).unbind(0)
    found = functional.scaled_dot_product_attention(query, key, value)
    return found.transpose(1, 2).reshape(tokens, -1)


def dense(shape: Shape, x: torch.Tensor, weights: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the block of whole matrices on one rank: what every scheme must give."""
    y = x @ weights[0]
    return _between(shape, y) @ weights[1] if len(weights) > 1 else y


def parallel(
    shape: Shape, dimension: Dimension, lines: Lines, x: torch.Tensor, weights: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Return this rank's share of the block."""
    y = _product(dimension, lines, x, weights[0], second=False)
    if len(weights) == 1:
        return y
    return _product(dimension, lines, _between(shape, y), weights[1], second=True)


def _product(dimension: Dimension, lines: Lines, x: torch.Tensor, a: torch.Tensor, second: bool) -> torch.Tensor:
    row, column, layer = lines
    kind: Any = Square
    along: Any = lines
    if dimension == "1d":
        kind, along = Rows if second else Columns, row
    elif dimension == "3d":
        kind, along = Cube, (layer, column, row) if second else along
    y: torch.Tensor = kind.apply(x, a, along)
    return y
