"""Batch norm in a model whose weights have 16 bits: torch computes it with weights as wide as its statistics."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.batchnorm import _NormBase

AFFINE = ("weight", "bias")


class _Wide:
    """A normalisation module with its weight and bias in float32; everything else is the module's own."""

    def __init__(self, module: _NormBase) -> None:
        self.module = module

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.module, name)
        return value.float() if name in AFFINE and isinstance(value, torch.Tensor) else value


def widen_norms(model: torch.nn.Module) -> None:
    """Let modules with running statistics widen weight and bias in their forward pass.

    Running statistics stay float32 in every precision. torch's kernels take 16-bit activations with float32 weights
    and statistics, but not 16-bit weights with float32 statistics. Parameters, gradients and outputs keep their type.
    """
    for module in model.modules():
        if isinstance(module, _NormBase) and module.track_running_stats:
            module.forward = _forward(module)


def _forward(module: _NormBase) -> Any:
    # Of the class as it is now: FSDP gives the module another one, whose forward pass it calls with hooks.
    forward, wide = type(module).forward, _Wide(module)
    return lambda input_: forward(wide, input_)
