"""K-FAC, distributed (Pauloski, Zhang, Huang, Xu and Foster, SC 2020, arXiv:2007.00784)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from repro.papers.kfac.options import KfacOptions
from repro.seams.plugin import Setting
from repro.seams.preconditioner import Place, Preconditioning

if TYPE_CHECKING:
    import torch


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

    def alone(self) -> Kfac:
        return self.model_copy(update={"placement": "opt", "fraction": None})
