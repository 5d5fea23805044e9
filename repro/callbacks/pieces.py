"""The parts of a model's tensors that this rank holds, whatever wraps the model, under the names of the bare model."""

from __future__ import annotations

import gc
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from repro.callbacks.sketch import Place

WRAPPED = ("module", "_orig_mod", "_forward_module", "_fsdp_wrapped_module")
"""Names under which wrappers keep their only child: DDP and DeepSpeed, torch.compile, Lightning, FSDP."""
INSIDE = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""Components of a parameter's name that a wrapper of one layer adds."""
LARGEST = 1e15
"""Magnitude to which frozen weights and buffers are cut before they are measured."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The elements of one tensor that this rank holds."""

    place: Place
    weights: Callable[[], torch.Tensor]
    """Returns what the optimizer updates: [count], a view."""
    gradient: Callable[[], torch.Tensor | None]
    """Returns what the backward pass left, reduced over the ranks: [count]; None: nothing."""
    copies: tuple[Callable[[], tuple[Place, torch.Tensor]], ...] = ()
    """Of weights that the forward pass reads instead."""


def outermost(model: nn.Module) -> nn.Module:
    """Return the module that wraps all of `model`; frameworks hand the bare one to their callbacks."""
    for found in gc.get_objects():
        if issubclass(type(found), nn.Module) and found is not model and inner(found) is model:
            return outermost(found)
    return model


def inner(wrapper: nn.Module) -> nn.Module | None:
    """Return the only child of a wrapper; None: the module is none."""
    children = wrapper.__dict__.get("_modules", {})
    return next((children[name] for name in WRAPPED if len(children) == 1 and name in children), None)


def chain(outer: nn.Module) -> list[nn.Module]:
    """Return a wrapped model from the outermost wrapper to the bare model."""
    found = [outer]
    while (child := inner(found[-1])) is not None:
        found.append(child)
    return found


def engine_of(modules: Sequence[nn.Module]) -> Any:
    """Return DeepSpeed's engine among the wrappers; None: there is none."""
    return next((each for each in modules if "DeepSpeedEngine" in {kind.__name__ for kind in type(each).__mro__}), None)


def wrapper_of(modules: Sequence[nn.Module]) -> str:
    """Return what distributes the training: none, ddp, fsdp, fsdp2, deepspeed-0 to deepspeed-3."""
    if (engine := engine_of(modules)) is not None:
        return f"deepspeed-{int(engine.zero_optimization_stage())}"
    kinds = {kind.__name__ for module in modules for kind in type(module).__mro__}
    return next((word for name, word in (("FSDPModule", "fsdp2"), ("FullyShardedDataParallel", "fsdp"),
                                         ("DistributedDataParallel", "ddp")) if name in kinds), "none")


def names_of(bare: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters by canonical name; tied weights once, under their first name."""
    return {".".join(part for part in name.split(".") if part not in INSIDE): param
            for name, param in bare.named_parameters()}


def pieces_of(bare: nn.Module) -> Iterator[Piece]:
    """Yield the pieces of all trained tensors; some may be empty on this rank.

    Raises:
        TypeError: a tensor is held in a way that is not known here, such as FSDP 1's flat parameters.
    """
    for name, param in names_of(bare).items():
        if not param.requires_grad:
            continue
        if hasattr(param, "ds_id"):
            found = _partition(name, param)
        elif hasattr(param, "_hp_mapping"):
            found = _fragment(name, param)
        elif hasattr(param, "placements"):
            found = _shard(name, param)
        elif "FlatParameter" in type(param).__name__ or hasattr(param, "_is_sharded"):
            raise TypeError(f"{name!r} is a flat parameter of FSDP 1, which is not traced; use FSDP 2 (fully_shard)")
        else:
            found = Piece(Place(name, param.numel(), 0, param.numel()), param.detach, partial(getattr, param, "grad"))
        yield found


def _shard(name: str, param: Any) -> Piece:
    """Return the piece of a DTensor (FSDP 2, tensor parallelism)."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, mesh = tuple(param.shape), param.device_mesh
    local, offset = compute_local_shape_and_global_offset(shape, mesh, param.placements)
    count = math.prod(local)
    box = tuple(zip(offset, local, shape, strict=True))
    row = param.numel() // max(shape[0], 1) if shape else 1
    if all(length == size for _, length, size in box[1:]):
        place = Place(name, param.numel(), box[0][0] * row if box else 0, count)
    else:
        place = Place(name, param.numel(), 0, count, box)
    return Piece(place, lambda: param.detach().to_local(),
                 lambda: None if param.grad is None else param.grad.to_local())


def _fragment(name: str, param: Any) -> Piece:
    """Return the piece of a parameter of ZeRO 1 or 2: a fragment of the optimizer's flat partition, without padding."""
    mapping, whole = param._hp_mapping, Place(name, param.numel(), 0, param.numel())
    if mapping is None:  # other ranks hold all of it; the forward pass reads it here too
        return Piece(Place(name, param.numel(), 0, 0), param.detach, lambda: None, (lambda: (whole, param.data),))
    address = mapping.lp_fragment_address

    def gradient() -> torch.Tensor | None:
        try:
            found = mapping.get_lp_grad_fragment(param._index_in_param_group)
        except (ValueError, IndexError, KeyError):
            return None
        flat: torch.Tensor = found.reshape(-1)
        return flat if len(flat) == address.numel else flat.narrow(0, address.start, address.numel)

    return Piece(Place(name, param.numel(), address.start, address.numel), lambda: mapping.hp_fragment, gradient,
                 (lambda: (whole, param.data),))


def _partition(name: str, param: Any) -> Piece:
    """Return the piece of a parameter of ZeRO 3: this rank's partition, without the padding of the last."""
    from deepspeed.utils import safe_get_local_fp32_param, safe_get_local_grad

    length = param.ds_tensor.numel()
    start = length * torch.distributed.get_rank(param.ds_process_group)
    count = max(0, min(length, param.ds_numel - start))
    place = Place(name, param.ds_numel, min(start, param.ds_numel), count)

    def gradient() -> torch.Tensor | None:
        try:
            found: torch.Tensor = safe_get_local_grad(param)[:count]
        except (KeyError, AttributeError):  # no backward pass has reached it
            return None
        return found

    return Piece(place, lambda: safe_get_local_fp32_param(param)[:count], gradient,
                 (lambda: (place, param.ds_tensor.data.reshape(-1)[:count]),))


def updated_pieces(
    pieces: Sequence[Piece], optimizer: torch.optim.Optimizer
) -> Iterator[tuple[Place, torch.Tensor, Mapping[str, Any]]]:
    """Yield the gradient by which an optimizer is about to update each piece, and the settings of its group.

    Pieces are found by the memory of their weights: DeepSpeed's groups hold flat partitions.
    """
    held: dict[int, list[Any]] = {}
    for group in optimizer.param_groups:
        for param in group["params"]:
            if param.grad is not None:
                local = local_of(param.detach())
                held.setdefault(local.untyped_storage().data_ptr(), []).append((local, local_of(param.grad), group))
    for piece in pieces:
        weights = piece.weights()
        for local, grad, group in held.get(weights.untyped_storage().data_ptr(), ()):
            first = weights.storage_offset() - local.storage_offset()
            if 0 <= first < local.numel():
                yield piece.place, dense(grad).reshape(-1)[first:first + piece.place.count], group
                break


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor as a dense one: gradients of an embedding may be sparse."""
    return tensor.to_dense() if tensor.is_sparse else tensor


def untrained_of(bare: nn.Module) -> Iterator[tuple[Place, torch.Tensor]]:
    """Yield what training does not change by an update, if each rank holds all of it: frozen weights and buffers."""
    frozen = ((name, param) for name, param in names_of(bare).items() if not param.requires_grad)
    for name, tensor in (*frozen, *bare.named_buffers()):
        if not hasattr(tensor, "ds_id") and not hasattr(tensor, "placements") and not tensor.is_complex():
            # A mask may hold infinities, or numbers whose squares are.
            values = dense(tensor.detach()).float().nan_to_num(0.0, LARGEST, -LARGEST).clamp(-LARGEST, LARGEST)
            yield Place(name, tensor.numel(), 0, tensor.numel()), values


def local_of(tensor: Any) -> torch.Tensor:
    """Return what this rank holds of a tensor."""
    found: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return found


def innermost_optimizer(optimizer: Any) -> Any:
    """Return torch's optimizer below the wrappers of Accelerate and DeepSpeed."""
    while getattr(optimizer, "optimizer", None) is not None:
        optimizer = optimizer.optimizer
    return optimizer


def types_of(tensors: Sequence[torch.Tensor]) -> dict[str, int]:
    """Return type -> number of elements."""
    found: dict[str, int] = {}
    for tensor in tensors:
        name = str(tensor.dtype).removeprefix("torch.")
        found[name] = found.get(name, 0) + tensor.numel()
    return found


def deepspeed_facts(engine: Any) -> Mapping[str, Any]:
    """Return what an engine of DeepSpeed does on its own, and whether its configuration asked for it."""
    from deepspeed.runtime import constants

    stated = engine._config._param_dict
    return {"version": sys.modules["deepspeed"].__version__, "clipping": float(engine.gradient_clipping()),
            "clipping_stated": constants.GRADIENT_CLIPPING in stated}
