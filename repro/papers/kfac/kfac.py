"""K-FAC, distributed (Pauloski, Zhang, Huang, Xu and Foster, SC 2020, arXiv:2007.00784)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from repro.papers.kfac.options import KfacOptions
from repro.seams.plugin import Setting
from repro.seams.preconditioner import Place, Preconditioning, Work
from repro.seams.workload import LayerShape

if TYPE_CHECKING:
    import torch


CUBES = {"eigen": 9.0, "direct": 2.0}
"""Operations of a decomposition of n rows over n^3: eigenvalues and eigenvectors of a symmetric matrix by QR
iterations, the inverse of a matrix (Golub and Van Loan, Matrix Computations, 4th edition, chapters 8 and 3)."""
PRODUCTS = {"eigen": 4, "direct": 2}
"""Matrix products of a preconditioned gradient, half of them with A and half with G."""


class Kfac(KfacOptions):
    """Kronecker-factored curvature of every linear and convolutional layer, over any optimizer.

    A layer's mean gradient dW becomes nu P(dW), P the damped inverse of G (x) A: A is the second moment of the layer's
    inputs, G that of the gradients of its outputs, nu the KL clip. Other parameters keep their gradient.
    """

    title: ClassVar[str] = "K-FAC"
    preload: ClassVar[tuple[str, ...]] = ("repro.papers.kfac.running",)
    always_shown: ClassVar[tuple[str, ...]] = ("placement", "eigen_every")

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
        """Return operations of all ranks, payload bytes and messages of a mean step; float32, as `RunningKfac` sends.

        A layer of `inputs` x `outputs` has factors of these sizes: a factor step costs 2 (inputs^2 + outputs^2) for
        every sample and position, a decomposition `CUBES` of both sizes, a product 2 inputs outputs (inputs + outputs)
        for each pair of `PRODUCTS`, on every rank that preconditions the layer.
        """
        if layers is None:
            return None
        taken = [layer for layer in layers if max(layer.inputs, layer.outputs) <= self.largest_factor]
        sizes = [(layer.inputs, layer.outputs) for layer in taken]
        rows = [size for pair in sizes for size in pair]
        grid = self.grid(world)
        observed = 2 * batch * sum(layer.positions * (layer.inputs**2 + layer.outputs**2) for layer in taken)
        decomposed = CUBES[self.inverse] * sum(size**3 for size in rows)
        products = PRODUCTS[self.inverse] * grid.workers * sum(a * g * (a + g) for a, g in sizes)
        factors = 4.0 * sum(size**2 for size in rows) if world > 1 else 0.0
        kept = 4.0 * sum(size**2 + size * (self.inverse == "eigen") for size in rows) if grid.workers > 1 else 0.0
        results = 4.0 * sum(a * g for a, g in sizes) if grid.columns > 1 else 0.0
        owners = min(grid.workers * grid.columns, len(rows)) if grid.workers > 1 else 0
        columns = min(grid.columns, len(sizes)) if grid.columns > 1 else 0
        return Work(
            flops=observed / self.factor_every + decomposed / self.eigen_every + products,
            sent_bytes=factors / self.factor_every + kept / self.eigen_every + results,
            messages=(world > 1) / self.factor_every + owners / self.eigen_every + columns,
        )

    def alone(self) -> Kfac:
        return self.model_copy(update={"placement": "opt", "fraction": None})
