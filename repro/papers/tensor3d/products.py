"""Matrix products Y = X A on a grid of ranks, forward and backward; every rank keeps only its shards.

What a product gathers it drops again, and gathers it once more in its backward pass, so that between the two a rank
holds the shares that the schemes promise. Collectives are all-gathers, reduce-scatters and all-reduces along lines.
"""

from __future__ import annotations

from typing import Any

import torch

from repro.papers.tensor3d.groups import Line


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
        y: torch.Tensor = line.sum(x @ a)
        return y

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x, a = ctx.saved_tensors
        return dy @ a.t(), x.t() @ dy, None
