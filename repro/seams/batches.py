"""Inputs and targets of any shape: a tensor, or tensors in tuples and dicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def call_model(model: Callable[..., Any], inputs: Any) -> Any:
    """Call the model: a dict is passed by keyword, a tuple or list by position, anything else as the one argument."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, tuple | list):
        return model(*inputs)
    return model(inputs)


def map_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return `value` with every tensor in it replaced by `change(tensor)`; what else it holds stays."""
    if isinstance(value, Mapping):
        return {key: map_tensors(item, change) for key, item in value.items()}
    if isinstance(value, tuple | list):
        items = [map_tensors(item, change) for item in value]
        # A named tuple takes its fields one by one.
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return change(value) if hasattr(value, "untyped_storage") else value


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield every tensor in `value`, dicts in the order of their keys as text."""
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from tensors_in(value[key])
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_in(item)
    elif hasattr(value, "untyped_storage"):
        yield value


def to_device(batch: Any, device: str) -> Any:
    """Return the batch on `device`; on CUDA by way of pinned memory, from which a copy does not hold up the host."""
    if device == "cpu":
        return batch
    return map_tensors(batch, lambda tensor: (tensor if tensor.is_cuda else tensor.pin_memory()).to(
        device, non_blocking=True))
