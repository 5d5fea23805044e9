"""RMSProp (Tieleman and Hinton, 2012)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pydantic import Field

from repro.optimizers.decay import Decay, decay_groups
from repro.seams.training import Optimizer

if TYPE_CHECKING:
    import torch


class RmsProp(Optimizer):
    """`torch.optim.RMSprop`: s <- alpha s + (1 - alpha) g^2;  v <- momentum v + g / (sqrt(s) + eps);  w <- w - lr v.

    Weight decay is the L2 term added to the gradient.
    """

    preload = ("torch", "torch._dynamo")

    lr: float = Field(gt=0, description="learning rate at the reference batch, before scaling rule and schedule")
    alpha: float = Field(0.99, ge=0, lt=1, description="share of the mean square that a step keeps")
    momentum: float = Field(0.0, ge=0, lt=1)
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    decay: Decay = "all"

    def build(self, named_parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> torch.optim.Optimizer:
        import torch

        groups = decay_groups(named_parameters, self.decay, self.weight_decay)
        return torch.optim.RMSprop(
            groups, lr=self.lr, alpha=self.alpha, eps=self.eps, momentum=self.momentum, foreach=False
        )
