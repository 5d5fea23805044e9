"""Bytes of a tensor parallel block on one rank, by formula: stored, at the peak, and sent in a forward and backward.

Shares of one product Y = X A with X of M x K, A of K x N numbers, on p ranks (Bian et al., 2021, section 3):

| scheme | X | A | Y | sent forward | sent backward |
|---|---|---|---|---|---|
| 1d, A by columns | MK | KN/p | MN/p | 0 | 2 (p-1)/p MK |
| 1d, A by rows | MK/p | KN/p | MN | 2 (p-1)/p MN | 0 |
| 2d, p = q^2 | MK/p | KN/p | MN/p | (q-1)(x + a) | 2 (q-1)(x + a) |
| 2.5d, p = q^2 d | MK/p | KN/q^2 | MN/p | (q-1)(x + a) | 2 (q-1)(x + a) + 2 (d-1)/d a |
| 3d, p = q^3 | MK/p | KN/p | MN/p | (q-1)(x + a + y) | (q-1)(2x + 2a + y) |

x, a and y are the shares of a rank. Gathers and scatters over s ranks send s - 1 shares, all-reduces twice (s-1)/s of
the tensor: what any algorithm needs whose ranks have one link each, and what a ring sends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from repro.papers.tensor3d.layout import Dimension, Grid, shares


@dataclass(frozen=True, slots=True)
class Size:
    """One product of a block: X of rows x inner, A of inner x columns numbers."""

    rows: int
    inner: int
    columns: int
    second: bool = False
    """The second product of its block."""


@dataclass(frozen=True, slots=True)
class Held:
    """Numbers of X, A and Y in a rank's shares of one product."""

    x: int
    a: int
    y: int


def held(dimension: Dimension, grid: Grid, size: Size) -> Held:
    """Return the numbers that a rank holds of one product; all ranks hold the same number."""
    own = shares(dimension, grid, 0, size.second)
    count = [high * wide for high, wide in (
        own.x.shape(size.rows, size.inner), own.a.shape(size.inner, size.columns),
        own.y.shape(size.rows, size.columns))]
    return Held(*count)


def sent_numbers(dimension: Dimension, grid: Grid, sizes: Sequence[Size]) -> float:
    """Return the numbers that a rank sends in one forward and backward of a block."""
    return sum(_sent(dimension, grid, size) for size in sizes)


def _sent(dimension: Dimension, grid: Grid, size: Size) -> float:
    own, p, q, depth = held(dimension, grid, size), grid.columns, grid.rows, grid.depth
    if dimension == "1d":
        return 2 * (p - 1) / p * (own.y if size.second else own.x)
    if dimension == "3d":
        return (q - 1) * (3 * own.x + 3 * own.a + 2 * own.y)
    return 3 * (q - 1) * (own.x + own.a) + 2 * (depth - 1) / depth * own.a


def messages(dimension: Dimension, grid: Grid, sizes: Sequence[Size]) -> int:
    """Return the rounds of one forward and backward by rings: each costs the latency of a message."""
    p, q, depth = grid.columns, grid.rows, grid.depth
    if dimension == "1d":
        return len(sizes) * 2 * (p - 1)
    each = 8 * (q - 1) if dimension == "3d" else 6 * (q - 1) + 2 * (depth - 1)
    return len(sizes) * each


def stored_numbers(dimension: Dimension, grid: Grid, sizes: Sequence[Size]) -> int:
    """Return the numbers that a rank keeps from the forward to the backward pass: the input and the weights."""
    return held(dimension, grid, sizes[0]).x + sum(held(dimension, grid, size).a for size in sizes)


class Account:
    """Adds up the bytes that are allocated and freed, and keeps the largest sum.

    Args:
        itemsize: bytes of a number.
        block: every tensor takes a multiple of these bytes.
    """

    def __init__(self, itemsize: int, block: int) -> None:
        self.itemsize, self.block = itemsize, block
        self.now = self.peak = 0

    def take(self, *counts: int) -> None:
        """Allocate tensors of so many numbers."""
        self.now += self._bytes(counts)
        self.peak = max(self.peak, self.now)

    def free(self, *counts: int) -> None:
        """Free tensors of so many numbers."""
        self.now -= self._bytes(counts)

    def _bytes(self, counts: Sequence[int]) -> int:
        return sum(-(-count * self.itemsize // self.block) * self.block for count in counts)


GPU_BLOCK = 512
"""Bytes of which torch's allocator gives a tensor on a GPU a multiple; its memory tracker counts so too."""


def peak_bytes(dimension: Dimension, grid: Grid, sizes: Sequence[Size], itemsize: int, block: int = 1) -> int:
    """Return the most bytes that a rank holds in one forward and backward: shares, gradients, what is gathered.

    Of one product, or of two with a GELU between them; buffers inside the process group are not in it.

    Args:
        itemsize: bytes of a number.
        block: every tensor takes a multiple of these bytes.
    """
    account = Account(itemsize, block)
    own = [held(dimension, grid, size) for size in sizes]
    account.take(own[0].x, own[-1].y, *(item.a for item in own))  # input, gradient of the output, weights
    for place, size in enumerate(sizes):
        if place:
            account.take(own[place].x)  # the result of the GELU; its argument is kept too
        _forward(account, dimension, grid, size)
    for place in reversed(range(len(sizes))):
        _backward(account, dimension, grid, sizes[place])
        if place:
            account.free(own[place].x)  # the result of the GELU has been used
            account.take(own[place].x)  # gradient of its argument, next to that of its result
            account.free(own[place].x, own[place].x)  # argument, and gradient of the result
    return account.peak


def _lines(dimension: Dimension, grid: Grid) -> tuple[int, int, int]:
    """Return over how many ranks X, A and Y are gathered."""
    if dimension == "1d":
        return 1, 1, 1
    return grid.columns, grid.rows, grid.depth if dimension == "3d" else 1


def _forward(account: Account, dimension: Dimension, grid: Grid, size: Size) -> None:
    own, (along_x, along_a, along_y) = held(dimension, grid, size), _lines(dimension, grid)
    gathered = [count * along for count, along in ((own.x, along_x), (own.a, along_a)) if along > 1]
    account.take(*gathered, own.y * along_y)
    if dimension == "3d":
        account.free(*gathered)
        gathered = []
    if along_y > 1:
        account.take(own.y)
        account.free(own.y * along_y)
    account.free(*gathered)


def _backward(account: Account, dimension: Dimension, grid: Grid, size: Size) -> None:
    own, (along_x, along_a, along_y) = held(dimension, grid, size), _lines(dimension, grid)
    whole = own.y * along_y if along_y > 1 else 0
    account.take(whole)
    for target, other, along, across in ((own.x, own.a, along_x, along_a), (own.a, own.x, along_a, along_x)):
        gathered = other * across if across > 1 else 0
        account.take(gathered)
        account.take(target * along)
        account.free(gathered)
        if along > 1:
            account.take(target)
            account.free(target * along)
    account.free(whole)
