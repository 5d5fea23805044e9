"""SGD with layer-wise adaptive rates (You, Gitman and Ginsburg, 2017), for large batches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, model_validator

from repro.optimizers.decay import Decay, adapted_groups
from repro.seams.training import Optimizer

if TYPE_CHECKING:
    import torch


class Lars(Optimizer):
    """LARS: the rate of each weight tensor times trust |w| / (|g| + weight_decay |w|), inside of the momentum.

    The paper's formula, in float32 in every precision (`layerwise.py`). By default biases and norms have neither
    decay nor a scaled rate.
    """

    preload = ("torch", "torch._dynamo", "repro.optimizers.updates.layerwise")
    whole_tensors: ClassVar[bool] = True
    moves_at_rate_zero: ClassVar[bool] = True

    lr: float = Field(gt=0, description="learning rate at the reference batch, before scaling rule and schedule")
    momentum: float = Field(0.9, ge=0, lt=1)
    trust: float = Field(0.001, gt=0, description="trust coefficient: the size of a change relative to the weights'")
    weight_decay: float = Field(0.0, ge=0)
    decay: Decay = "weights"
    adapt: Decay = Field("weights", description="tensors whose rate is scaled; weights: not those of fewer than two "
                                                "dimensions (biases, scales and shifts of norms)")

    @model_validator(mode="before")
    @classmethod
    def _has_no_fused_kernel(cls, data: Any) -> Any:
        if isinstance(data, dict) and "fused" in data:
            raise ValueError("lars has no fused kernel: it needs the norms of whole tensors before an update; remove "
                             "fused")
        return data

    def build(self, named_parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> torch.optim.Optimizer:
        from repro.optimizers.updates import layerwise

        groups = adapted_groups(named_parameters, self.decay, self.weight_decay, self.adapt)
        return layerwise.Lars(groups, lr=self.lr, momentum=self.momentum, trust=self.trust)
