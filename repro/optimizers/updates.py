"""Update rules as torch optimizers that torch does not have: LARS, LAMB, and several optimizers as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor


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


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the type of an update's arithmetic: at least float32."""
    return torch.promote_types(dtype, torch.float32)


def whole_norms(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Return the L2 norm of each tensor (scalar tensors, at least float32).

    Norms of divided tensors take one all-reduce of the default group, which is FSDP's, for all of them; every rank
    passes the same tensors in the same order.
    """
    if not tensors:
        return ()
    dtype = wide(tensors[0].dtype)
    own = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]
    norms = torch.stack([torch.linalg.vector_norm(tensor, dtype=dtype) for tensor in own])
    if any(isinstance(tensor, DTensor) for tensor in tensors):
        norms = norms.square()
        dist.all_reduce(norms)
        norms = norms.sqrt()
    return norms.unbind()


class Joined(torch.optim.Optimizer):
    """The groups and the state of all `parts`, which step in turn.

    Groups and state are shared with the parts: what an engine sets in one of them (the rate, float32 copies of the
    parameters, loaded state) holds in both. A group may have `rate_share`: its rate as a share of the one that is set.
    """

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        super().__init__([group for part in parts for group in part.param_groups], {})
        self.parts = parts

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # no loss to return
        """Take one step; `closure` is not called."""
        own = iter(self.param_groups)
        for part in self.parts:  # `load_state_dict` replaces groups and state with other objects
            part.param_groups = [next(own) for _ in part.param_groups]
            part.state = self.state
        rates = [group["lr"] for group in self.param_groups]
        for group in self.param_groups:
            group["lr"] *= group.get("rate_share", 1.0)
        try:
            for part in self.parts:
                part.step()
        finally:
            for group, rate in zip(self.param_groups, rates, strict=True):
                group["lr"] = rate
