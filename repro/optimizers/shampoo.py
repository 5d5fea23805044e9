"""Shampoo (Gupta, Koren and Singer, 2018): one preconditioner for each dimension of a tensor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from repro.core.installed import why_missing
from repro.optimizers.decay import Decay, decay_groups
from repro.seams.plugin import Rows, Setting
from repro.seams.training import Optimizer

if TYPE_CHECKING:
    import torch


class Shampoo(Optimizer):
    """`pytorch_optimizer.Shampoo`: w <- w - lr L^(-1/4) G R^(-1/4), L and R the sums of G G^T and G^T G.

    A tensor of k dimensions has k such sums, each to the power -1/(2k). Without momentum: the library's adds
    preconditioned gradients to raw ones, which the paper does not. Weight decay is the L2 term added to the gradient.
    """

    preload = ("torch", "torch._dynamo")
    whole_tensors: ClassVar[bool] = True
    on_rows: ClassVar[Rows] = "none"
    starts_from_zero: ClassVar[bool] = False

    lr: float = Field(gt=0, description="learning rate at the reference batch, before scaling rule and schedule")
    matrix_eps: float = Field(1e-6, gt=0, description="multiple of the identity that every sum starts from")
    weight_decay: float = Field(0.0, ge=0)
    decay: Decay = "all"
    roots_every: int = Field(1, ge=1, description="steps from one computation of the roots to the next; before the "
                                                  "first one the weights do not move")

    def unsupported(self, setting: Setting) -> str | None:
        return why_missing("optimizers", "pytorch-optimizer", "pytorch_optimizer")

    def build(self, named_parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> torch.optim.Optimizer:
        import pytorch_optimizer

        groups = decay_groups(named_parameters, self.decay, self.weight_decay)
        made: torch.optim.Optimizer = pytorch_optimizer.Shampoo(
            groups, lr=self.lr, matrix_eps=self.matrix_eps, preconditioning_compute_steps=self.roots_every
        )
        return made
