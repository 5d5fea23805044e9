"""The blocks that are measured, on a rank's shares and dense: a linear layer, an MLP, a self-attention; no biases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.nn import functional

from repro.papers.tensor3d.formula import Size
from repro.papers.tensor3d.grid import Dimension
from repro.papers.tensor3d.groups import Lines
from repro.papers.tensor3d.products import Columns, Cube, Rows, Square

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


def attend(both: torch.Tensor, sequence: int, head_columns: int) -> torch.Tensor:
    """Return the self-attention of whole sequences and whole heads [tokens, heads x head_columns].

    Args:
        both: query, key and value of one head after the other [tokens, heads x 3 x head_columns].
    """
    tokens = both.shape[0]
    parts = both.view(tokens // sequence, sequence, -1, 3, head_columns).permute(3, 0, 2, 1, 4)
    query, key, value = parts.unbind(0)
    found = functional.scaled_dot_product_attention(query, key, value)
    return found.transpose(1, 2).reshape(tokens, -1)


def _between(shape: Shape, first: torch.Tensor) -> torch.Tensor:
    """Return the input of the second product."""
    if shape.layer == "attention":
        return attend(first, shape.sequence, shape.hidden // shape.heads)
    return functional.gelu(first)


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
    row, column, layer = lines.row, lines.column, lines.layer
    kind: Any = Square
    along: Any = (row, column, layer)
    if dimension == "1d":
        kind, along = Rows if second else Columns, row
    elif dimension == "3d":
        kind, along = Cube, (layer, column, row) if second else along
    y: torch.Tensor = kind.apply(x, a, along)
    return y
