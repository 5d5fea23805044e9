"""Nesterov's look-ahead with the scaling of RMSProp: AdaptAhead in our reading."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch


class AdaptAhead(torch.optim.Optimizer):
    """Our reading of "A Hybrid Optimization Algorithm for Learning Deep Models"; no text with the formulas was found.

    With weights w, rate r and weight decay b::

        look ahead at a = w + momentum v, where g is the gradient
        g <- g + b a;  s <- rho s + (1 - rho) g^2
        v <- momentum v - r g / sqrt(s + eps);  w <- w + v

    The parameters hold a, where the next gradient is needed, as torch's SGD with Nesterov momentum does: a step adds
    (1 + momentum) v_new - momentum v_old to them. A step of rate 0 goes on by what v holds.

    Args:
        groups: with `weight_decay`.
    """

    # The rule has these constants, and groups override the decay.
    def __init__(self, groups: Iterable[dict[str, Any]], lr: float, momentum: float, rho: float, eps: float) -> None:
        super().__init__(groups, {"lr": lr, "momentum": momentum, "rho": rho, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # no loss to return
        """Take one step; `closure` is not called."""
        for group in self.param_groups:
            for ahead in group["params"]:
                if ahead.grad is not None:
                    self._update(ahead, group)

    def _update(self, ahead: torch.Tensor, group: dict[str, Any]) -> None:
        state, momentum, rho = self.state[ahead], group["momentum"], group["rho"]
        if not state:
            state |= {"velocity": torch.zeros_like(ahead), "square": torch.zeros_like(ahead)}
        assert ahead.grad is not None
        gradient = ahead.grad.add(ahead, alpha=group["weight_decay"]) if group["weight_decay"] else ahead.grad
        square, velocity = state["square"], state["velocity"]
        square.mul_(rho).addcmul_(gradient, gradient, value=1 - rho)
        ahead.sub_(velocity, alpha=momentum)
        velocity.mul_(momentum).addcdiv_(gradient, (square + group["eps"]).sqrt_(), value=-group["lr"])
        ahead.add_(velocity, alpha=1 + momentum)
