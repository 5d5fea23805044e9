"""The types in which gradients are reduced, observed in the collectives of one step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from repro.engines.plain.numerics import name_of

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
