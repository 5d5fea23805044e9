"""The options of K-FAC, and the assignment of its work to ranks. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field, model_validator

from repro.seams.preconditioner import Preconditioner
from repro.suite.field_problem import FieldProblem


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


class KfacOptions(Preconditioner):
    """Options of K-FAC in a suite, and the grid of ranks that they give."""

    placement: Literal["opt", "lw", "fraction"] = Field(
        "opt", description="opt: every rank preconditions every layer, decompositions are shared; lw: one rank per "
                           "layer preconditions it and sends the result in every step; fraction: `fraction` of the "
                           "ranks do (KAISA)")
    fraction: float | None = Field(
        None, gt=0, le=1, description="share of the ranks that precondition a layer, with placement fraction; times "
                                      "processes a whole number that divides processes")
    inverse: Literal["eigen", "direct"] = Field(
        "eigen", description="eigen: by eigendecomposition, damping on the eigenvalues of the product; direct: "
                             "inverses of both factors, damping on each")
    damping: float = Field(0.003, gt=0)
    kl_clip: float | None = Field(
        0.001, gt=0, description="kappa: the result is scaled by min(1, sqrt(kappa / |sum v dW rate^2|)); null: never")
    factor_decay: float = Field(0.95, ge=0, lt=1, description="weight of the past in the running averages of A and G")
    factor_every: int = Field(1, ge=1, description="steps between updates of the factors")
    eigen_every: int = Field(10, ge=1, description="steps between decompositions, a multiple of factor_every")
    largest_factor: int = Field(
        8192, ge=2, description="layers with more inputs or outputs keep their gradient: a factor has their square")

    @model_validator(mode="after")
    def _periods_fit(self) -> KfacOptions:
        rest = self.eigen_every % self.factor_every
        if rest:
            near = self.eigen_every - rest + self.factor_every
            raise FieldProblem(f"must be a multiple of factor_every {self.factor_every} (given: {self.eigen_every}; "
                               f"{near} would be): decompositions are of factors that were just updated",
                               ("eigen_every",))
        return self

    @model_validator(mode="after")
    def _fraction_of_its_placement(self) -> KfacOptions:
        if (self.placement == "fraction") != (self.fraction is not None):
            known = "placement fraction needs it" if self.fraction is None else f"placement {self.placement} has none"
            raise FieldProblem(f"{known}: give both or neither", ("fraction",))
        return self

    def workers(self, world: int) -> float:
        """Return how many of `world` ranks precondition a layer."""
        return {"opt": world, "lw": 1}.get(self.placement, (self.fraction or 0) * world)

    def grid(self, world: int) -> Grid:
        """Return the ranks in columns of workers."""
        return Grid(world, round(self.workers(world)))
