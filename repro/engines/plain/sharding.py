"""A model divided by torch's FSDP2, and what FSDP's own objects say about it.

All code that depends on FSDP's internals is in this file: torch offers no other way to read back what it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from repro.core.errors import TrialError
from repro.engines.plain.blocks import blocks_of


@dataclass(frozen=True, slots=True)
class Sharding:
    """Division of a model: the modules that are gathered together, and the types of their weights and gradients."""

    wrap: str | Sequence[str]
    """"model", "blocks", or the classes of the modules that are gathered one by one."""
    reshard_after_forward: bool | None
    """None: torch's default, True for all modules but the root."""
    policy: MixedPrecisionPolicy
    blocks: Sequence[str] = ()
    """The workload's names of its blocks."""

    def apply(self, model: nn.Module, device_type: str) -> None:
        """Divide the model over all ranks of the default group, the inner modules first.

        Raises:
            TrialError: the model cannot be divided in this way.
        """
        if scalars := [name for name, parameter in model.named_parameters() if parameter.ndim == 0]:
            raise TrialError(f"engine fsdp: parameter {scalars[0]!r} is a scalar, which FSDP cannot divide; give it "
                             "the shape [1] in the workload")
        assert dist.group.WORLD is not None
        mesh = DeviceMesh.from_group(dist.group.WORLD, device_type)
        for module in [*self.inner(model), model]:
            fully_shard(module, mesh=mesh, reshard_after_forward=self.reshard_after_forward, mp_policy=self.policy)

    def inner(self, model: nn.Module) -> list[nn.Module]:
        """Return the modules below the root that are gathered one by one, the innermost first.

        Raises:
            TrialError: the model has no module of a class that `wrap` names.
        """
        if self.wrap == "model":
            return []
        return blocks_of(model, self.blocks if self.wrap == "blocks" else self.wrap)


def sharded_modules(model: nn.Module) -> list[FSDPModule]:
    """Return the modules that FSDP gathers, the root first."""
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def reshard(model: nn.Module) -> None:
    """Free gathered weights: after a pass without back-propagation FSDP keeps those that it expects to need in it."""
    for module in sharded_modules(model):
        module.reshard()


@dataclass(frozen=True, slots=True)
class Group:
    """One group of parameters that FSDP gathers and reduces together, as FSDP describes it."""

    elements: int
    """Elements that a reduce-scatter of its gradients sends in, the filling up to equal parts included."""
    freed: bool
    """The gathered weights are freed after the forward pass and gathered again for back-propagation."""
    computed: torch.dtype | None
    """Type of the gathered weights; None: they have not been gathered yet."""
    sent: torch.dtype | None
    """Type to which gradients are rounded to be sent; None: their own."""


def groups_of(model: nn.Module, world: int) -> list[Group]:
    """Return the groups of the model's trained parameters."""
    groups = [group for module in sharded_modules(model) for group in module._get_fsdp_state()._fsdp_param_groups]
    trained = [[param for param in group.fsdp_params if param.sharded_param.requires_grad] for group in groups]
    return [_describe(group, params, world) for group, params in zip(groups, trained, strict=True) if params]


def _describe(group: Any, trained: Sequence[Any], world: int) -> Group:
    gathered = getattr(trained[0], "_unsharded_param", None)
    return Group(
        elements=sum(param.padded_sharded_param_size.numel() for param in trained) * world,
        freed=bool(group._reshard_after_forward), computed=None if gathered is None else gathered.dtype,
        sent=group._reduce_dtype,
    )
