"""A model in training under FSDP2.

All code that depends on FSDP's internals is in this file: torch offers no other way to read back what it does.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from repro.core.devices import on_gpu
from repro.core.errors import TrialError
from repro.engines.plain.loop import LoopSession, MasterCopy
from repro.engines.plain.modules import blocks_of
from repro.engines.plain.numerics import name_of
from repro.engines.plain.session import as_array
from repro.engines.plain.tensor_files import copy_tensors
from repro.seams.training import Held, Job, TrainingParts


def inner_modules(model: nn.Module, wrap: str | Sequence[str], blocks: Sequence[str] = ()) -> list[nn.Module]:
    """Return the modules below the root that are gathered one by one, the innermost first.

    Args:
        wrap: "model", "blocks", or the classes of the modules.
        blocks: the workload's names of its blocks.

    Raises:
        TrialError: the model has no module of a class that `wrap` names.
    """
    if wrap == "model":
        return []
    return blocks_of(model, blocks if wrap == "blocks" else wrap)


def divide(
    model: nn.Module, inner: Sequence[nn.Module], device_type: str, reshard_after_forward: bool | None,
    policy: MixedPrecisionPolicy,
) -> None:
    """Divide the model over all ranks of the default group, the inner modules first.

    Args:
        reshard_after_forward: None: torch's default, True for all modules but the root.

    Raises:
        TrialError: the model cannot be divided.
    """
    if scalars := [name for name, parameter in model.named_parameters() if parameter.ndim == 0]:
        raise TrialError(f"engine fsdp: parameter {scalars[0]!r} is a scalar, which FSDP cannot divide; give it "
                         "the shape [1] in the workload")
    assert dist.group.WORLD is not None
    mesh = DeviceMesh.from_group(dist.group.WORLD, device_type)
    for module in [*inner, model]:
        try:
            fully_shard(module, mesh=mesh, reshard_after_forward=reshard_after_forward, mp_policy=policy)
        except ValueError as error:  # two modules share a parameter
            raise TrialError(f"engine fsdp: {error} With wrap: model all modules are in one group.") from error


def sharded_modules(model: nn.Module) -> list[FSDPModule]:
    """Return the modules that FSDP gathers, the root first."""
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def groups_of(model: nn.Module) -> list[tuple[Any, list[Any]]]:
    """Return the groups that FSDP gathers and reduces together, each with its trained parameters (at least one)."""
    found = [(group, [param for param in group.fsdp_params if param.sharded_param.requires_grad])
             for module in sharded_modules(model) for group in _groups_of(module._get_fsdp_state())]
    return [(group, trained) for group, trained in found if trained]


def _groups_of(state: Any) -> Sequence[Any]:
    """Return the groups of one module; before torch 2.13 it has one or none."""
    if hasattr(state, "_fsdp_param_groups"):
        found: Sequence[Any] = state._fsdp_param_groups
        return found
    return [state._fsdp_param_group] if state._fsdp_param_group is not None else []


SENT = {"fp16": torch.float16, "bf16": torch.bfloat16}
"""Compression -> the type in which gradients are sent."""


class FsdpSession(LoopSession):
    """The plain loop around a model whose parameters are divided over the ranks.

    Every rank keeps a part of each parameter, its gradient and its optimizer state: rows of the first dimension, in
    float32. FSDP gathers the rows, in the type in which the model computes, when a module runs.
    """

    writes_alike = True

    def __init__(
        self, parts: TrainingParts, job: Job, wrap: str | Sequence[str], reshard_after_forward: bool | None
    ) -> None:
        self.chosen, self.reshard_after_forward = wrap, reshard_after_forward
        super().__init__(parts, job)

    def prepare(self) -> MasterCopy | None:
        """Divide the model; FSDP's own parts are the float32 weights that are stepped.

        `fully_shard` moves parameters and buffers of a group to the device as it divides the group.
        """
        policy = MixedPrecisionPolicy(
            param_dtype=None if self.numerics.weights is torch.float32 else self.numerics.weights,
            reduce_dtype=SENT.get(self.job.compression),
            # The session casts the model's inputs, as in every engine; between modules nothing is cast.
            cast_forward_inputs=False,
        )
        self.inner = inner_modules(self.model, self.chosen, self.parts.blocks)
        self.prepare_blocks()
        divide(self.model, self.inner, self.device.type, self.reshard_after_forward, policy)
        # While a module's weights are gathered, they take the place of the parts in `named_parameters`.
        self.parts_of_rank = super().trained()
        return None

    def compiled_modules(self) -> list[torch.nn.Module]:
        """Return the modules whose weights are gathered together: FSDP's hooks cannot be compiled."""
        return self.inner or [self.model]

    def trained(self) -> list[tuple[str, torch.nn.Parameter]]:
        return self.parts_of_rank

    # ---- training

    @contextmanager
    def local(self) -> Iterator[None]:
        self.model.set_requires_gradient_sync(False)  # type: ignore[operator]  # of FSDPModule
        try:
            yield
        finally:
            self.model.set_requires_gradient_sync(True)  # type: ignore[operator]

    def clip(self, limit: float) -> None:
        gradients = [parameter.grad for parameter in self.stepped if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        assert isinstance(norm, DTensor)
        # One sum over ranks; as a distributed tensor the norm would be summed again for every gradient.
        torch.nn.utils.clip_grads_with_norm_(self.stepped, limit, norm.full_tensor())

    def forward_is_collective(self) -> bool:
        return not self.alone

    def finish_evaluation(self) -> None:
        # After a pass without back-propagation FSDP keeps the gathered weights that it expects to need in it.
        for module in sharded_modules(self.model):
            module.reshard()

    # ---- checkpoints: a rank writes its own parts

    def state_tensors(self) -> dict[str, torch.Tensor]:
        return {name: tensor for name, tensor in super().state_tensors().items() if not isinstance(tensor, DTensor)}

    def own_tensors(self) -> dict[str, torch.Tensor]:
        # A small parameter has fewer rows than there are ranks: some ranks have none.
        return {name: tensor.to_local() for name, tensor in super().state_tensors().items()
                if isinstance(tensor, DTensor) and tensor.to_local().numel()}

    def load_state(self, folder: Path, own: Mapping[str, Any]) -> None:
        self.checkpoint = folder.name
        super().load_state(folder, own)

    def load_own(self, tensors: dict[str, torch.Tensor], own: Mapping[str, Any]) -> None:
        copy_tensors(self.own_tensors(), tensors, self.checkpoint)

    # ---- read-outs

    def state_memory(self) -> dict[str, int]:
        return self.states().fsdp()

    def gradients(self) -> dict[str, np.ndarray]:
        scale = np.float32(self.scaler.get_scale() if self.scaler else 1.0)
        return {name: _full(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad) / scale
                for name, parameter in self.trained()}

    def held_gradients(self) -> list[Held] | None:
        scale, found = self.scaler.get_scale() if self.scaler else 1.0, []
        for name, part in self._parts():
            gradient: Any = torch.zeros_like(part) if part.grad is None else part.grad
            found.append(Held(name, as_array(gradient.to_local(), scale).ravel(), self._start(part)))
        return found

    def stepped_gradients(self) -> list[Held] | None:
        scale, given = self.unapplied_scale(), self.given()
        return [Held(name, as_array(given[id(part)].grad.to_local(), scale).ravel(), self._start(part))
                for name, part in self._parts() if id(part) in given]

    def weights(self) -> dict[str, np.ndarray]:
        return {name: _full(parameter) for name, parameter in self.trained()}

    def held(self) -> list[Held] | None:
        """The rows of this rank, rounded to the type in which they are gathered."""
        return [Held(name, as_array(part.to_local().detach().to(self.numerics.weights)).ravel(), self._start(part))
                for name, part in self._parts()]

    def _parts(self) -> list[tuple[str, DTensor]]:
        return [(name, part) for name, part in self.trained() if isinstance(part, DTensor)]

    def _start(self, part: DTensor) -> int:
        """Return the place of this rank's first value in the flattened parameter."""
        return min(self.job.rank * _rows(part), part.shape[0]) * part.shape[1:].numel()

    def effective(self) -> dict[str, str]:
        groups = groups_of(self.model)
        gathered = [getattr(trained[0], "_unsharded_param", None) for _, trained in groups]  # None: not gathered yet
        computed = _types(None if tensor is None else tensor.dtype for tensor in gathered)
        freed = sum(bool(group._reshard_after_forward) for group, _ in groups)
        names: dict[Any, str] = {None: "none", **{dtype: name for name, dtype in SENT.items()}}
        sent = {group._reduce_dtype for group, _ in groups}  # None: gradients are sent in their own type
        # What a reduce-scatter takes, the filling up to equal parts included.
        elements = [sum(param.padded_sharded_param_size.numel() for param in trained) * self.job.world
                    for _, trained in groups]
        return {
            **super().effective(),
            "wrapper": type(self.model).__name__,
            "weight_dtype": computed,
            "gradient_dtype": computed,
            "compression": ",".join(sorted(names.get(dtype) or name_of(dtype) for dtype in sent)),
            "overlap": "on" if on_gpu(self.device) and len(groups) > 1 else "off",
            "zero_stage": "3" if freed else "2",
            "reshard_after_forward": f"{freed} of {len(groups)} groups",
            "buckets": str(len(groups)),
            "bucket_bytes": ",".join(str(count * self.numerics.weights.itemsize) for count in elements),
        }

    def close(self) -> None:
        # Gradients and gathered weights must not outlive the group.
        self.clear_gradients()
        gc.collect()
        super().close()


def _full(tensor: torch.Tensor) -> np.ndarray:
    """Return the complete tensor on the host, float32; all ranks take part."""
    assert isinstance(tensor, DTensor)
    # `full_tensor` calls its group from C++, where groups written in Python (communication algorithms) are not known.
    own = tensor.to_local().detach()
    padded = own.new_zeros((_rows(tensor), *tensor.shape[1:]))
    padded[:len(own)] = own
    found = [torch.empty_like(padded) for _ in range(tensor.device_mesh.size())]
    dist.all_gather(found, padded)
    return as_array(torch.cat(found)[:tensor.shape[0]])


def _rows(tensor: DTensor) -> int:
    """Return the rows of each rank but the last ones, which may have fewer."""
    return -(-tensor.shape[0] // tensor.device_mesh.size())


def _types(found: Iterator[torch.dtype | None]) -> str:
    """Return the different types, comma-separated; "unknown" if one is."""
    names = {"unknown" if dtype is None else name_of(dtype) for dtype in found}
    return "unknown" if "unknown" in names or not names else ",".join(sorted(names))
