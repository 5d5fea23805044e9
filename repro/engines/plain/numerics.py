"""The types of a trial: a precision applied to modules and tensors, and the types in which gradients are reduced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from repro.core.devices import on_gpu
from repro.seams.training import LossScaling, Precision
from repro.seams.workload import map_tensors


class Numerics:
    """Casts and autocast of one precision on one device.

    Args:
        channels_last: give images this memory format.
    """

    def __init__(self, precision: Precision, device: str, channels_last: bool) -> None:
        self.channels_last = channels_last
        self.device_type = torch.device(device).type
        self.weights: torch.dtype = getattr(torch, precision.weights)
        self.autocast_dtype: torch.dtype | None = getattr(torch, precision.autocast) if precision.autocast else None
        self.plain = self.weights is torch.float32 and self.autocast_dtype is None
        if on_gpu(device):
            # torch's default is TensorFloat-32 for convolutions but not for products: neither fp32 nor tf32.
            torch.backends.cuda.matmul.allow_tf32 = precision.tf32
            torch.backends.cudnn.allow_tf32 = precision.tf32

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context of the forward pass."""
        if self.autocast_dtype is None:
            return nullcontext()
        return torch.autocast(self.device_type, dtype=self.autocast_dtype)

    def inputs(self, value: Any) -> Any:
        """Return `value` with floating tensors in the type of the weights, and images in the memory format."""
        if self.channels_last:
            value = tree_map(lambda item: item.contiguous(memory_format=torch.channels_last)
                             if isinstance(item, torch.Tensor) and item.ndim == 4 else item, value)
        return value if self.weights is torch.float32 else cast_floats(value, self.weights)

    def outputs(self, value: Any) -> Any:
        """Return `value` with floating tensors in float32, for the loss and the metrics."""
        if self.plain and isinstance(value, torch.Tensor) and value.dtype is torch.float32:
            return value  # in every step: what runs between two kernels runs from cold caches
        return cast_floats(value, torch.float32)

    def prepare(self, model: torch.nn.Module) -> None:
        """Let modules whose statistics stay float32 compute with weights of 16 bits; before anything is cast.

        torch's kernels take 16-bit activations with float32 weights and statistics, but not 16-bit weights with float32
        statistics: these modules widen weight and bias in their forward pass. Parameters, gradients and outputs keep
        their type.
        """
        if self.weights is torch.float32:
            return
        for module in model.modules():
            if isinstance(module, _NormBase) and module.track_running_stats:
                module.forward = _forward(module)

    def cast_parameters(self, model: torch.nn.Module) -> None:
        """Round the parameters to the type of the weights; buffers keep theirs."""
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.data = parameter.data.to(self.weights)

    def probe(self) -> str:
        """Compute a matrix product under this precision's autocast and return its type."""
        ones = torch.ones(2, 2, dtype=self.weights, device=self.device_type)
        with torch.no_grad(), self.autocast():
            return name_of((ones @ ones).dtype)

    def tf32(self) -> str:
        """Return "on", "off" or "mixed": the state of TensorFloat-32, read back from torch."""
        if not on_gpu(self.device_type):
            return "off"
        on = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
        return "on" if all(on) else "mixed" if any(on) else "off"


def make_scaler(scaling: LossScaling, device_type: str) -> torch.amp.GradScaler:
    """Return torch's loss scaler with the values of `scaling`."""
    return torch.amp.GradScaler(
        device_type, init_scale=2.0 ** scaling.initial_scale_power, growth_factor=scaling.GROWTH_FACTOR,
        backoff_factor=scaling.BACKOFF_FACTOR, growth_interval=scaling.growth_interval,
    )


def cast_floats(value: Any, dtype: torch.dtype) -> Any:
    """Return `value` with every floating tensor in it (also inside tuples, lists and dicts) as `dtype`."""
    return map_tensors(value, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)


def name_of(dtype: torch.dtype) -> str:
    """Return `float32` for `torch.float32`."""
    return str(dtype).removeprefix("torch.")


AFFINE = ("weight", "bias")


class _Wide:
    """A normalisation module with its weight and bias in float32; everything else is the module's own."""

    def __init__(self, module: _NormBase) -> None:
        self.module = module

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.module, name)
        return value.float() if name in AFFINE and isinstance(value, torch.Tensor) else value


def _forward(module: _NormBase) -> Any:
    # Of the class as it is now: FSDP gives the module another one, whose forward pass it calls with hooks.
    forward, wide = type(module).forward, _Wide(module)
    return lambda input_: forward(wide, input_)


REDUCTIONS = ("allreduce_", "allreduce_coalesced_", "reduce_", "reduce_scatter_", "_reduce_scatter_base_",
              "reduce_scatter_tensor_coalesced_")
"""torch's operators behind every way to request a sum from a process group: from Python, and from DDP in C++."""
SMALL = 0.01
"""Share of all reduced elements below which a type is not that of gradients but of norms and overflow flags."""


class ReductionWatcher(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own __init_subclass__
    """Counts the elements of reductions by type while entered.

    It runs Python code at every operator and is therefore used in the warm-up only.

    Args:
        elements: counts to add to; one watcher sees one thread, several may share their counts.
    """

    def __init__(self, elements: dict[torch.dtype, int] | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements = {} if elements is None else elements

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func.namespace == "c10d" and func._schema.name.partition("::")[2] in REDUCTIONS:
            for leaf in tree_leaves(args):
                if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
                    self.elements[leaf.dtype] = self.elements.get(leaf.dtype, 0) + leaf.numel()
        return func(*args, **(kwargs or {}))

    def add_traffic(self, traffic: Mapping[str, Any]) -> None:
        """Add what a communication algorithm counted itself: torch passes it collectives without dispatching."""
        for line in traffic.get("lines", ()):
            dtype = getattr(torch, line["dtype"], None)
            if line["operation"].startswith(("all_reduce", "reduce")) and dtype is not None and dtype.is_floating_point:
                count = line["payload_bytes"] // dtype.itemsize
                self.elements[dtype] = self.elements.get(dtype, 0) + count

    def types(self) -> str:
        """Return the types of gradients on the wire, comma-separated; "unknown" if nothing was seen."""
        least = SMALL * sum(self.elements.values())
        return ",".join(sorted(name_of(dtype) for dtype, count in self.elements.items() if count >= least)) or "unknown"
