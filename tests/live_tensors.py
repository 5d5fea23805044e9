"""Spies on torch in a test's process: bytes of all live tensors, and values that are read back to the host."""

from __future__ import annotations

import gc
import traceback
import warnings
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


def live_bytes() -> int:
    """Bytes of the storages that Python objects hold, each once; meta tensors and empty storages have none."""
    import torch

    gc.collect()
    found: dict[int, int] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of attributes that are looked at
        for item in gc.get_objects():
            if not issubclass(type(item), torch.Tensor) or item.is_meta:
                continue
            tensor = item.to_local() if hasattr(item, "to_local") else item
            for part in (tensor, tensor.grad):
                if part is not None:
                    part = part.to_local() if hasattr(part, "to_local") else part
                    storage = part.untyped_storage()
                    found[storage.data_ptr()] = storage.nbytes()
    found.pop(0, None)
    return sum(found.values())


def _reader() -> str:
    """Place of the code that asked for the value: the innermost frame outside torch and this file."""
    frames = reversed(traceback.extract_stack()[:-2])
    frame = next(item for item in frames if "/torch/" not in item.filename and item.filename != __file__)
    return f"{frame.filename}:{frame.lineno}"


class ReadbackCounter(TorchDispatchMode):
    """Notes operators that make the host wait for the device: on a GPU each would end the host's lead."""

    NAMES = ("aten::_local_scalar_dense", "aten::item", "aten::equal", "aten::is_nonzero", "aten::nonzero")

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name in self.NAMES:
            self.found.append(f"{_reader()}: {func._schema.name}")
        return func(*args, **(kwargs or {}))
