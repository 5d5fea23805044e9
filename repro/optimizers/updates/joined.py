"""Several torch optimizers as one: each has its own parameter groups, the rate comes from outside."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch


class Joined(torch.optim.Optimizer):
    """The groups and the state of all `parts`, which step in turn.

    Groups and state are shared with the parts: what an engine sets in one of them (the rate, float32 copies of the
    parameters, loaded state) holds in both. A group may have `rate_share`: its rate as a share of the one that is set.
    """

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        super().__init__([group for part in parts for group in part.param_groups], {})
        self.parts = parts
        own = iter(self.param_groups)
        for part in parts:
            part.param_groups = [next(own) for _ in part.param_groups]
            part.state = self.state

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # no loss to return
        """Take one step; `closure` is not called."""
        rates = [group["lr"] for group in self.param_groups]
        for group in self.param_groups:
            group["lr"] *= group.get("rate_share", 1.0)
        try:
            for part in self.parts:
                part.step()
        finally:
            for group, rate in zip(self.param_groups, rates, strict=True):
                group["lr"] = rate
