"""Assignment of factors to the ranks that decompose them, and of layers to the ranks that precondition. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Grid:
    """Ranks in columns of `workers` (KAISA: Pauloski et al., SC 2021): a column preconditions the layers dealt to it.

    One column of all ranks is placement "opt", one rank a column is "lw". Rank r stands at place r mod `workers` of
    column r div `workers`; the ranks at one place of all columns are a row, in which results are exchanged.
    """

    world: int
    workers: int
    """Ranks of a column; divides `world`."""

    @property
    def columns(self) -> int:
        return self.world // self.workers

    def column_of(self, rank: int) -> int:
        return rank // self.workers

    def column(self, column: int) -> list[int]:
        """Return the ranks of a column."""
        return list(range(column * self.workers, (column + 1) * self.workers))

    def row_of(self, rank: int) -> list[int]:
        """Return the ranks of a rank's row: one for each column."""
        return list(range(rank % self.workers, self.world, self.workers))


@dataclass(frozen=True, slots=True)
class Assignment:
    """The work of all ranks; the same on each of them."""

    columns: tuple[int, ...]
    """Column of each layer."""
    owners: tuple[tuple[int, int], ...]
    """Ranks that decompose A and G of each layer; both of the layer's column."""


def assign(sizes: Sequence[tuple[int, int]], grid: Grid) -> Assignment:
    """Deal layers to columns and their factors to the ranks of the column, the costliest first to the least loaded.

    Args:
        sizes: rows of A and G of each layer; to decompose n rows costs n^3.
    """
    columns = _deal([a**3 + g**3 for a, g in sizes], range(grid.columns))
    owners: dict[tuple[int, int], int] = {}
    for column in range(grid.columns):
        mine = [(layer, factor) for layer, of in enumerate(columns) if of == column for factor in (0, 1)]
        dealt = _deal([sizes[layer][factor] ** 3 for layer, factor in mine], grid.column(column))
        owners.update(zip(mine, dealt, strict=True))
    return Assignment(tuple(columns), tuple((owners[layer, 0], owners[layer, 1]) for layer in range(len(sizes))))


def _deal(costs: Sequence[int], receivers: Iterable[int]) -> list[int]:
    loads = dict.fromkeys(receivers, 0)
    found = [0] * len(costs)
    for item in sorted(range(len(costs)), key=lambda index: (-costs[index], index)):
        found[item] = min(loads, key=lambda receiver: (loads[receiver], receiver))
        loads[found[item]] += costs[item]
    return found
