"""Layer-wise adaptive moments for batch training."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from repro.optimizers.updates.whole_norms import whole_norms, wide


class Lamb(torch.optim.Optimizer):
    """Algorithm 2 of You et al. (2020, arXiv:1904.00962) with the identity as phi, in at least float32.

    With weights w, gradient g, rate r, step t and weight decay b::

        m <- beta1 m + (1 - beta1) g;  v <- beta2 v + (1 - beta2) g^2
        u <- m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + b w
        w <- w - r |w| / |u| u

    |w| / |u| is 1 in a group with `adapt` False, and where a norm is 0, which the paper leaves open.

    Args:
        groups: with `weight_decay` and `adapt`.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], lr: float, betas: tuple[float, float], eps: float) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # no loss to return
        """Take one step; `closure` is not called."""
        changes = [(weight, group, self._change(weight, group)) for group in self.param_groups
                   for weight in group["params"] if weight.grad is not None]
        adapted = [(weight, change) for weight, group, change in changes if group["adapt"]]
        norms = whole_norms([tensor for pair in adapted for tensor in pair])
        ratios = {weight: torch.where((size > 0) & (length > 0), size / length, torch.ones_like(size))
                  for (weight, _), size, length in zip(adapted, norms[::2], norms[1::2], strict=True)}
        for weight, group, change in changes:
            scaled = change.mul(ratios[weight]) if weight in ratios else change
            weight.copy_(weight.to(change.dtype) - group["lr"] * scaled)

    def _change(self, weight: torch.Tensor, group: dict[str, Any]) -> torch.Tensor:
        """Update the moments and return u."""
        dtype, state = wide(weight.dtype), self.state[weight]
        if not state:
            state |= {"step": 0, "first": torch.zeros_like(weight, dtype=dtype),
                      "second": torch.zeros_like(weight, dtype=dtype)}
        assert weight.grad is not None
        gradient, (beta1, beta2) = weight.grad.to(dtype), group["betas"]
        state["step"] += 1
        state["first"].mul_(beta1).add_(gradient, alpha=1 - beta1)
        state["second"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = (state["second"] / (1 - beta2 ** state["step"])).sqrt_().add_(group["eps"])
        change: torch.Tensor = (state["first"] / (1 - beta1 ** state["step"])).div_(root)
        return change.add_(weight.to(dtype), alpha=group["weight_decay"])
