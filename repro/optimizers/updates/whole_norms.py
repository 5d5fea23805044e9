"""L2 norms of whole tensors, also of those whose rows are divided over the ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor


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
