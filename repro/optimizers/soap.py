"""SOAP (Vyas et al., 2024): Adam in the eigenbasis of Shampoo's preconditioner."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from repro.core.installed import why_missing
from repro.optimizers.adam import Beta
from repro.optimizers.decay import Decay, decay_groups
from repro.seams.plugin import Rows, Setting
from repro.seams.training import Optimizer

if TYPE_CHECKING:
    import torch


class Soap(Optimizer):
    """`pytorch_optimizer.SOAP`: Adam in the eigenbasis of Shampoo's factors; vectors by Adam alone.

    The first step only measures the factors and leaves the weights as they are. Where a factor has equal eigenvalues
    (a first gradient of low rank has many of 0), rounding decides the basis, and with it the update.
    """

    preload = ("torch", "torch._dynamo")
    whole_tensors: ClassVar[bool] = True
    on_rows: ClassVar[Rows] = "none"
    starts_from_zero: ClassVar[bool] = False
    ungated: ClassVar[str] = ("rounding decides SOAP's eigenbasis where a factor has equal eigenvalues, so correct "
                              "engines differ")

    lr: float = Field(gt=0, description="learning rate at the reference batch, before scaling rule and schedule")
    betas: tuple[Beta, Beta] = (0.95, 0.95)
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.01, ge=0)
    decay: Decay = "all"
    basis_every: int = Field(10, ge=1, description="steps from one eigenbasis to the next")
    largest_dimension: int = Field(10_000, ge=1, description="dimensions that are larger get no factor")

    def unsupported(self, setting: Setting) -> str | None:
        return why_missing("optimizers", "pytorch-optimizer", "pytorch_optimizer")

    def build(self, named_parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> torch.optim.Optimizer:
        import pytorch_optimizer

        groups = decay_groups(named_parameters, self.decay, self.weight_decay)
        made: torch.optim.Optimizer = pytorch_optimizer.SOAP(
            groups, lr=self.lr, betas=self.betas, eps=self.eps, precondition_frequency=self.basis_every,
            max_precondition_dim=self.largest_dimension,
        )
        return made
