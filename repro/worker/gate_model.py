"""Changes to a model in the parity gate, before its engine starts: what would differ between two correct engines."""

from __future__ import annotations

from typing import Any

import torch


def cut_dropout(model: torch.nn.Module) -> None:
    """Set the probability of torch's dropout modules to 0: every rank draws its own masks, so two engines differ."""
    for module in model.modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.p = 0.0
        elif isinstance(module, torch.nn.MultiheadAttention):
            module.dropout = 0.0


def keep_rank_0_buffers(model: torch.nn.Module, ranks: int) -> None:
    """Let only every `ranks`-th forward pass change the buffers of the reference: those of rank 0's micro-batches.

    Running statistics of a data-parallel model are rank 0's. In training they do not enter the outputs, so the
    gradients of the reference stay those of all micro-batches.
    """
    kept: list[torch.Tensor] = []
    passes = 0

    def before(module: torch.nn.Module, _: Any) -> None:
        kept[:] = [buffer.detach().clone() for buffer in module.buffers()] if module.training else []

    def after(module: torch.nn.Module, _: Any, __: Any) -> None:
        nonlocal passes
        if not module.training:
            return
        if passes % ranks:
            for buffer, value in zip(module.buffers(), kept, strict=True):
                buffer.data.copy_(value)  # through `data`: autograd has saved the buffer and would refuse
        passes += 1

    model.register_forward_pre_hook(before)
    model.register_forward_hook(after)
