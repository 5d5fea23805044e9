"""The outer step of rare communication: the ranks' weights averaged, and a rule applied to the mean difference.

With theta the synchronised weights, theta_i those of rank i after its own steps, p ranks, outer rate a and momentum m
(Douillard et al. 2023, DiLoCo, arXiv:2311.08105, algorithm 1; nesterov as in `torch.optim.SGD`):

    d = 1/p sum_i (theta - theta_i);  b <- m b + d;  theta <- theta - a (d + m b), without nesterov theta - a b

Rate 1 without momentum sets theta to the mean of theta_i: local SGD (Stich 2019, arXiv:1805.09767).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist


class OuterStep:
    """The synchronised weights of one rank, equal on all ranks, and the rule that steps them.

    Args:
        parameters: what the trial's own optimizer steps on this rank.
        world: number of ranks.
    """

    def __init__(
        self, parameters: Sequence[torch.Tensor], world: int, rate: float, momentum: float, nesterov: bool
    ) -> None:
        self.parameters, self.world = list(parameters), world
        self.weights = torch.nn.Parameter(flat(self.parameters), requires_grad=False)
        """Float32, flat: all parameters in the model's order."""
        self.rule = torch.optim.SGD([self.weights], lr=rate, momentum=momentum, nesterov=nesterov)
        if momentum:  # created here: a checkpoint before the first synchronisation has the same tensors as later ones
            self.rule.state[self.weights]["momentum_buffer"] = torch.zeros_like(self.weights)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the synchronised weights and the outer momentum, by name; not copies."""
        momentum = self.rule.state.get(self.weights, {}).get("momentum_buffer")
        found = {"outer.weights": self.weights.detach()}
        return found if momentum is None else found | {"outer.momentum": momentum}

    @torch.no_grad()
    def mean_difference(self) -> torch.Tensor:
        """Return d, the mean over ranks of theta - theta_i, float32 and flat: one all-reduce of all weights."""
        found = self.weights - flat(self.parameters)
        return mean_over_ranks(found, self.world)

    @torch.no_grad()
    def synchronise(self) -> None:
        """Take the outer step and set this rank's parameters to its result; all ranks take part."""
        self.weights.grad = self.mean_difference()
        self.rule.step()
        self.weights.grad = None
        self.write(self.weights)

    @torch.no_grad()
    def average(self) -> None:
        """Set this rank's parameters to the mean over ranks; the synchronised weights stay. All ranks take part."""
        self.write(self.weights - self.mean_difference())

    @torch.no_grad()
    def write(self, values: torch.Tensor) -> None:
        """Write flat `values` into the parameters."""
        pieces = torch.split(values, [parameter.numel() for parameter in self.parameters])
        for parameter, piece in zip(self.parameters, pieces, strict=True):
            parameter.copy_(piece.view_as(parameter))


@torch.no_grad()
def flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return a float32 copy of all tensors, one after the other."""
    return torch.cat([tensor.detach().float().reshape(-1) for tensor in tensors])


def mean_over_ranks(values: torch.Tensor, world: int) -> torch.Tensor:
    """Return `values` averaged over the ranks, in place."""
    if world > 1:
        dist.all_reduce(values)
        values /= world
    return values
