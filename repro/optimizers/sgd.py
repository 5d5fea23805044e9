"""Stochastic gradient descent with momentum."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pydantic import Field, model_validator

from repro.optimizers.decay import Decay, decay_groups, kernels
from repro.seams.training import Optimizer

if TYPE_CHECKING:
    import torch


class Sgd(Optimizer):
    """v <- momentum v + g + weight_decay w;  w <- w - lr v  (nesterov: w - lr (g + weight_decay w + momentum v)).

    No dampening. Weight decay is the L2 term added to the gradient (after clipping).
    """

    preload = ("torch", "torch._dynamo")
    linear = True

    lr: float = Field(gt=0, description="learning rate at the reference batch, before scaling rule and schedule")
    momentum: float = Field(0.9, ge=0, lt=1)
    nesterov: bool = False
    weight_decay: float = Field(0.0, ge=0)
    decay: Decay = "all"

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> Sgd:
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov needs momentum above 0")
        return self

    def build(self, named_parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> torch.optim.Optimizer:
        import torch

        groups = decay_groups(named_parameters, self.decay, self.weight_decay)
        return torch.optim.SGD(
            groups, lr=self.lr, momentum=self.momentum, nesterov=self.nesterov, dampening=0.0, **kernels(groups)
        )
