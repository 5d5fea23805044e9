"""The options of K-FAC."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from repro.papers.kfac.placement import Grid
from repro.seams.preconditioner import Preconditioner
from repro.suite.field_problem import FieldProblem


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
