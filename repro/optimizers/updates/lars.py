"""Layer-wise adaptive rate scaling."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from repro.optimizers.updates.whole_norms import whole_norms, wide


class Lars(torch.optim.Optimizer):
    """Algorithm 1 of You, Gitman and Ginsburg (2017, arXiv:1708.03888), in at least float32.

    With weights w, gradient g, rate r, trust coefficient q and weight decay b::

        s <- q |w| / (|g| + b |w|)
        v <- momentum v + r s (g + b w);  w <- w - v

    s is 1 in a group with `adapt` False, and where a norm is 0, which the paper leaves open. The rate is inside of the
    momentum, so that a step of rate 0 goes on by what v holds.

    Args:
        groups: with `weight_decay` and `adapt`.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], lr: float, momentum: float, trust: float) -> None:
        super().__init__(groups, {"lr": lr, "momentum": momentum, "trust": trust})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # no loss to return
        """Take one step; `closure` is not called."""
        scales = self._scales()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._update(weight, group, scales.get(weight))

    def _scales(self) -> dict[torch.Tensor, torch.Tensor]:
        """Return the factor of the rate of every tensor that is adapted."""
        adapted = [(weight, group) for group in self.param_groups if group["adapt"] for weight in group["params"]
                   if weight.grad is not None]
        norms = whole_norms([tensor for weight, _ in adapted for tensor in (weight, weight.grad)])
        found = {}
        for (weight, group), size, slope in zip(adapted, norms[::2], norms[1::2], strict=True):
            scale = group["trust"] * size / (slope + group["weight_decay"] * size)
            found[weight] = torch.where((size > 0) & (slope > 0), scale, torch.ones_like(scale))
        return found

    def _update(self, weight: torch.Tensor, group: dict[str, Any], scale: torch.Tensor | None) -> None:
        dtype = wide(weight.dtype)
        state = self.state[weight]
        if not state:
            state["velocity"] = torch.zeros_like(weight, dtype=dtype)
        assert weight.grad is not None
        change = weight.grad.to(dtype).add(weight.to(dtype), alpha=group["weight_decay"])
        if scale is not None:
            change = change.mul(scale)
        velocity = state["velocity"].mul_(group["momentum"]).add_(change, alpha=group["lr"])
        weight.copy_(weight.to(dtype) - velocity)
