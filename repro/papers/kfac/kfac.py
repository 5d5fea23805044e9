"""K-FAC, distributed (Pauloski, Zhang, Huang, Xu and Foster, SC 2020, arXiv:2007.00784)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from repro.seams.plugin import Setting
from repro.seams.preconditioner import Place, Preconditioner, Preconditioning, Work
from repro.seams.workload import LayerShape
from repro.suite.field_problem import FieldProblem

if TYPE_CHECKING:
    import torch


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


class Kfac(Preconditioner):
    """Kronecker-factored curvature of every linear and convolutional layer, over any optimizer.

    A layer's mean gradient dW becomes nu P(dW), P the damped inverse of G (x) A: A is the second moment of the layer's
    inputs, G that of the gradients of its outputs, nu the KL clip. Other parameters keep their gradient.
    """

    title: ClassVar[str] = "K-FAC"
    preload: ClassVar[tuple[str, ...]] = ("repro.papers.kfac.running",)
    always_shown: ClassVar[tuple[str, ...]] = ("placement", "eigen_every")

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
    def _periods_fit(self) -> Kfac:
        rest = self.eigen_every % self.factor_every
        if rest:
            near = self.eigen_every - rest + self.factor_every
            raise FieldProblem(f"must be a multiple of factor_every {self.factor_every} (given: {self.eigen_every}; "
                               f"{near} would be): decompositions are of factors that were just updated",
                               ("eigen_every",))
        return self

    @model_validator(mode="after")
    def _fraction_of_its_placement(self) -> Kfac:
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

    def unsupported(self, setting: Setting) -> str | None:
        if setting.zero_stage:
            return (f"K-FAC needs the whole mean gradient of a layer, and engine {setting.engine} divides gradients "
                    f"over the ranks (ZeRO stage {setting.zero_stage}); use ddp, single, or deepspeed with stage 0")
        if not setting.preconditions:
            return f"engine {setting.engine} preconditions no gradients; use ddp, single, or deepspeed with stage 0"
        if setting.model.compile is not None:
            return "K-FAC reads the inputs of layers by hooks, which compiled code does not call; remove compile"
        workers, world = self.workers(setting.processes), setting.processes
        if workers < 1 or workers != round(workers) or world % round(workers):
            return (f"fraction {self.fraction:g} of {world} processes is {workers:g} ranks; it must be a whole number "
                    f"that divides {world}")
        return None

    def attach(self, model: torch.nn.Module, place: Place) -> Preconditioning:
        from repro.papers.kfac.running import RunningKfac

        return RunningKfac(self, model, place)

    def work(self, layers: Sequence[LayerShape] | None, batch: int, world: int) -> Work | None:
        return None if layers is None else mean_work(self, layers, batch, world)

    def alone(self) -> Kfac:
        return self.model_copy(update={"placement": "opt", "fraction": None})


CUBES = {"eigen": 9.0, "direct": 2.0}
"""Operations of a decomposition of n rows over n^3: eigenvalues and eigenvectors of a symmetric matrix by QR
iterations, the inverse of a matrix (Golub and Van Loan, Matrix Computations, 4th edition, chapters 8 and 3)."""
PRODUCTS = {"eigen": 4, "direct": 2}
"""Matrix products of a preconditioned gradient, half of them with A and half with G."""


def mean_work(options: Kfac, layers: Sequence[LayerShape], batch: int, world: int) -> Work:
    """Return operations of all ranks, payload bytes and messages of a mean step; float32, as `RunningKfac` sends them.

    A layer of `inputs` x `outputs` has factors of these sizes: a factor step costs 2 (inputs^2 + outputs^2) for every
    sample and position, a decomposition `CUBES` of both sizes, a product 2 inputs outputs (inputs + outputs) for each
    pair of `PRODUCTS`, on every rank that preconditions the layer.
    """
    taken = [layer for layer in layers if max(layer.inputs, layer.outputs) <= options.largest_factor]
    sizes = [(layer.inputs, layer.outputs) for layer in taken]
    rows = [size for pair in sizes for size in pair]
    grid = options.grid(world)
    observed = 2 * batch * sum(layer.positions * (layer.inputs**2 + layer.outputs**2) for layer in taken)
    decomposed = CUBES[options.inverse] * sum(size**3 for size in rows)
    products = PRODUCTS[options.inverse] * grid.workers * sum(a * g * (a + g) for a, g in sizes)
    factors = 4.0 * sum(size**2 for size in rows) if world > 1 else 0.0
    kept = 4.0 * sum(size**2 + size * (options.inverse == "eigen") for size in rows) if grid.workers > 1 else 0.0
    results = 4.0 * sum(a * g for a, g in sizes) if grid.columns > 1 else 0.0
    owners = min(grid.workers * grid.columns, len(rows)) if grid.workers > 1 else 0
    columns = min(grid.columns, len(sizes)) if grid.columns > 1 else 0
    return Work(
        flops=observed / options.factor_every + decomposed / options.eigen_every + products,
        sent_bytes=factors / options.factor_every + kept / options.eigen_every + results,
        messages=(world > 1) / options.factor_every + owners / options.eigen_every + columns,
    )
