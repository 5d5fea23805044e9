"""AdaptAhead, our reading: Nesterov's look-ahead with the scaling of RMSProp."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from repro.optimizers.decay import Decay, decay_groups
from repro.seams.training import Optimizer

if TYPE_CHECKING:
    import torch


class AdaptAhead(Optimizer):
    """AdaptAhead (our reading): Nesterov's look-ahead with the scaling of RMSProp.

    Of "A Hybrid Optimization Algorithm for Learning Deep Models"; the formulas are in `updates/adaptahead.py`. As with
    Nesterov momentum in SGD, the model holds and is evaluated at the look-ahead weights.
    """

    preload = ("torch", "torch._dynamo", "repro.optimizers.updates.adaptahead")
    moves_at_rate_zero: ClassVar[bool] = True

    lr: float = Field(gt=0, description="learning rate at the reference batch, before scaling rule and schedule")
    momentum: float = Field(0.9, ge=0, lt=1)
    rho: float = Field(0.99, ge=0, lt=1, description="share of the mean square that a step keeps")
    eps: float = Field(1e-8, gt=0, description="added to the mean square, inside of the root")
    weight_decay: float = Field(0.0, ge=0)
    decay: Decay = "all"

    def build(self, named_parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> torch.optim.Optimizer:
        from repro.optimizers.updates import adaptahead

        groups = decay_groups(named_parameters, self.decay, self.weight_decay)
        return adaptahead.AdaptAhead(groups, lr=self.lr, momentum=self.momentum, rho=self.rho, eps=self.eps)
