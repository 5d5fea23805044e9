"""Schedule-free AdamW and SGD (Defazio et al., 2024): averaging in place of a schedule."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, cast

from pydantic import Field, field_validator

from repro.core.installed import why_missing
from repro.optimizers.adam import Beta
from repro.optimizers.decay import Decay, decay_groups
from repro.seams.plugin import Setting
from repro.seams.training import Optimizer

if TYPE_CHECKING:
    import torch


class ScheduleFreeAdamW(Optimizer):
    """`schedulefree.AdamWScheduleFree`: gradients at a mixture of fast weights and their average, which is evaluated.

    Meant for a constant rate, if with a warm-up. Batch norm's statistics stay those of the weights in training.
    """

    preload = ("torch", "torch._dynamo")
    evaluates_other_weights: ClassVar[bool] = True
    moves_at_rate_zero: ClassVar[bool] = True
    starts_from_zero: ClassVar[bool] = False

    lr: float = Field(gt=0, description="learning rate at the reference batch, before scaling rule and schedule")
    betas: tuple[Beta, Beta] = Field((0.9, 0.999), description="share of the average in the weights of training, and "
                                                               "of the mean square that a step keeps")
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    decay: Decay = "all"

    @field_validator("betas")
    @classmethod
    def _has_an_average(cls, value: tuple[float, float]) -> tuple[float, float]:
        if value[0] == 0:
            raise ValueError("the first of betas must be above 0: the evaluated average cannot be found without it")
        return value

    def unsupported(self, setting: Setting) -> str | None:
        return why_missing("optimizers", "schedulefree", "schedulefree")

    def build(self, named_parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> torch.optim.Optimizer:
        import schedulefree

        groups = decay_groups(named_parameters, self.decay, self.weight_decay)
        made = schedulefree.AdamWScheduleFree(groups, lr=self.lr, betas=self.betas, eps=self.eps, foreach=False)
        made.train()
        return cast("torch.optim.Optimizer", made)




class ScheduleFreeSgd(Optimizer):
    """`schedulefree.SGDScheduleFree`: gradients at a mixture of fast weights and their average, which is evaluated.

    Meant for a constant rate, if with a warm-up. Batch norm's statistics stay those of the weights in training.
    """

    preload = ("torch", "torch._dynamo")
    evaluates_other_weights: ClassVar[bool] = True
    moves_at_rate_zero: ClassVar[bool] = True
    starts_from_zero: ClassVar[bool] = False

    lr: float = Field(gt=0, description="learning rate at the reference batch, before scaling rule and schedule")
    momentum: float = Field(0.9, gt=0, lt=1, description="share of the average in the weights of training")
    weight_decay: float = Field(0.0, ge=0)
    decay: Decay = "all"

    def unsupported(self, setting: Setting) -> str | None:
        return why_missing("optimizers", "schedulefree", "schedulefree")

    def build(self, named_parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> torch.optim.Optimizer:
        import schedulefree

        groups = decay_groups(named_parameters, self.decay, self.weight_decay)
        made = schedulefree.SGDScheduleFree(groups, lr=self.lr, momentum=self.momentum, foreach=False)
        made.train()
        return cast("torch.optim.Optimizer", made)
