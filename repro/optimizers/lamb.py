"""Adam with layer-wise adaptive rates (You et al., 2020), for large batches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from repro.optimizers.adam import Beta
from repro.optimizers.decay import Decay, adapted_groups
from repro.seams.training import Optimizer

if TYPE_CHECKING:
    import torch


class Lamb(Optimizer):
    """LAMB: the update of AdamW, scaled for each weight tensor to the length of the weights.

    The paper's formula, in float32 in every precision (`layerwise.py`). By default biases and norms have neither
    decay nor a scaled update.
    """

    preload = ("torch", "torch._dynamo", "repro.optimizers.updates.layerwise")
    whole_tensors: ClassVar[bool] = True

    lr: float = Field(gt=0, description="learning rate at the reference batch, before scaling rule and schedule")
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: float = Field(1e-6, gt=0)
    weight_decay: float = Field(0.01, ge=0)
    decay: Decay = "weights"
    adapt: Decay = Field("weights", description="tensors whose update is scaled; weights: not those of fewer than two "
                                                "dimensions (biases, scales and shifts of norms)")

    def build(self, named_parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> torch.optim.Optimizer:
        from repro.optimizers.updates import layerwise

        groups = adapted_groups(named_parameters, self.decay, self.weight_decay, self.adapt)
        return layerwise.Lamb(groups, lr=self.lr, betas=self.betas, eps=self.eps)
