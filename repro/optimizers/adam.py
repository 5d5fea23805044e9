"""Adam (Kingma and Ba, 2015), with weight decay in the gradient or decoupled (AdamW, Loshchilov & Hutter, 2019)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from repro.optimizers.decay import Decay, decay_groups, kernels
from repro.seams.training import Optimizer

if TYPE_CHECKING:
    import torch


Beta = Annotated[float, Field(ge=0, lt=1)]


class AdamW(Optimizer):
    """`torch.optim.AdamW`: bias-corrected moments; decay multiplies the weights by 1 - lr x weight_decay."""

    preload = ("torch", "torch._dynamo")

    lr: float = Field(gt=0, description="learning rate at the reference batch, before scaling rule and schedule")
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.01, ge=0)
    decay: Decay = "all"

    def build(self, named_parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> torch.optim.Optimizer:
        import torch

        groups = decay_groups(named_parameters, self.decay, self.weight_decay)
        return torch.optim.AdamW(groups, lr=self.lr, betas=self.betas, eps=self.eps, **kernels(groups))




class Adam(Optimizer):
    """`torch.optim.Adam`: bias-corrected moments; weight decay is the L2 term added to the gradient (AdamW: not)."""

    preload = ("torch", "torch._dynamo")

    lr: float = Field(gt=0, description="learning rate at the reference batch, before scaling rule and schedule")
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    decay: Decay = "all"

    def build(self, named_parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> torch.optim.Optimizer:
        import torch

        groups = decay_groups(named_parameters, self.decay, self.weight_decay)
        return torch.optim.Adam(groups, lr=self.lr, betas=self.betas, eps=self.eps, **kernels(groups))
