"""Lion (Chen et al., 2023): the sign of a momentum."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pydantic import Field

from repro.core.installed import why_missing
from repro.optimizers.adam import Beta
from repro.optimizers.decay import Decay, decay_groups
from repro.seams.plugin import Setting
from repro.seams.training import Optimizer

if TYPE_CHECKING:
    import torch


class Lion(Optimizer):
    """`pytorch_optimizer.Lion`: w <- w - lr (sign(beta1 m + (1 - beta1) g) + weight_decay w), m with beta2."""

    preload = ("torch", "torch._dynamo")

    lr: float = Field(gt=0, description="learning rate at the reference batch, before scaling rule and schedule")
    betas: tuple[Beta, Beta] = (0.9, 0.99)
    weight_decay: float = Field(0.0, ge=0)
    decay: Decay = "all"

    def unsupported(self, setting: Setting) -> str | None:
        return why_missing("optimizers", "pytorch-optimizer", "pytorch_optimizer")

    def build(self, named_parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> torch.optim.Optimizer:
        import pytorch_optimizer

        groups = decay_groups(named_parameters, self.decay, self.weight_decay)
        made: torch.optim.Optimizer = pytorch_optimizer.Lion(
            groups, lr=self.lr, betas=self.betas, weight_decouple=True, foreach=False
        )
        return made
