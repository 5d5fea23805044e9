"""A model that every rank trains by itself, with all ranks' weights averaged every few steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from repro.engines.plain.loop import LoopSession
from repro.engines.plain.session import as_array
from repro.engines.plain.tensor_files import copy_tensors
from repro.seams.training import Batch, Job, TrainingParts


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


class LocalSession(LoopSession):
    """The plain loop on every rank, and an outer step after every `every` of its steps.

    Between two outer steps the ranks' weights differ, and `weights` and `held` are this rank's own; in `evaluated` they
    are the mean over ranks.

    Args:
        every: steps of a rank from one outer step to the next.
        outer: rate, momentum and nesterov of the outer step.
    """

    def __init__(self, parts: TrainingParts, job: Job, every: int, outer: tuple[float, float, bool]) -> None:
        super().__init__(parts, job)
        self.every, self.since = every, 0
        self.outer = OuterStep(self.stepped, job.world, *outer)

    def update(self, rate: float) -> None:
        super().update(rate)
        self.since += 1
        if self.since == self.every:
            self.outer.synchronise()
            self.publish_weights()
            self.since = 0

    @contextmanager
    def evaluated(self) -> Iterator[None]:
        if self._averaged or self.alone or not self.since:
            yield
            return
        own = [parameter.detach().clone() for parameter in self.stepped]
        self._averaged = True
        self.outer.average()
        self.publish_weights()
        try:
            yield
        finally:
            with torch.no_grad():
                for parameter, value in zip(self.stepped, own, strict=True):
                    parameter.copy_(value)
            self.publish_weights()
            self._averaged = False

    def state_memory(self) -> dict[str, int]:
        return self.states().whole(outer=len(self.outer.tensors()))

    def gradients(self) -> dict[str, np.ndarray]:
        own = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        mean = mean_over_ranks(flat(own), self.job.world)
        pieces = torch.split(mean, [tensor.numel() for tensor in own])
        return {name: as_array(piece.view_as(p)) for (name, p), piece in zip(self.trained(), pieces, strict=True)}

    def warm_up(self, batches: Sequence[Batch]) -> None:
        super().warm_up(batches)
        self.traffic()
        with self.reductions:  # nothing has moved, so only the type of what is sent shows
            self.outer.synchronise()
        self.reductions.add_traffic(self.traffic())
        self.publish_weights()
        self.since = 0

    # ---- checkpoints

    def state_tensors(self) -> dict[str, torch.Tensor]:
        return self.outer.tensors()

    def own_tensors(self) -> dict[str, torch.Tensor]:
        return super().state_tensors()

    def own_state(self) -> dict[str, Any]:
        return {"since": self.since}

    def load_own(self, tensors: dict[str, torch.Tensor], own: Mapping[str, Any]) -> None:
        copy_tensors(super().state_tensors(), tensors, f"of rank {self.job.rank}")
        self.since = int(own["since"])

    def state_bytes(self) -> int:
        shared = sum(tensor.numel() * tensor.itemsize for tensor in self.outer.tensors().values())
        return super().state_bytes() * self.job.world + shared

    # ---- read-outs

    def effective(self) -> dict[str, str]:
        rule = self.outer.rule.param_groups[0]
        size = self.outer.weights.numel() * self.outer.weights.itemsize
        return {
            **super().effective(),
            "compression": "none", "overlap": "off", "buckets": "1", "bucket_bytes": str(size),
            "synchronised_every": str(self.every),
            "outer_rate": f"{rule['lr']:g}", "outer_momentum": f"{rule['momentum']:g}",
            "outer_nesterov": "on" if rule["nesterov"] else "off",
        }
