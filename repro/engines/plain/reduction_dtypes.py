"""Sees in which type gradients are really reduced: every collective that is run during one step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from repro.engines.plain.numerics import name_of

REDUCTIONS = ("allreduce_", "allreduce_coalesced_", "reduce_", "reduce_scatter_", "_reduce_scatter_base_",
              "reduce_scatter_tensor_coalesced_")
"""torch's own operators behind every way to ask a process group for a sum: from Python, and from DDP in C++."""
SMALL = 0.01
"""Share of all reduced elements below which a type is not the gradients': norms, flags of overflow."""


class Watched(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own __init_subclass__
    """While it is entered: counts elements of reductions by type. Costs Python at every operator, so for a warm-up.

    Args:
        elements: where to count; one watcher sees one thread, several may count together.
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

    def heard(self, traffic: Mapping[str, Any]) -> None:
        """Take in what a communication algorithm counted itself: torch hands it collectives without dispatching."""
        for line in traffic.get("lines", ()):
            dtype = getattr(torch, line["dtype"], None)
            if line["operation"].startswith(("all_reduce", "reduce")) and dtype is not None and dtype.is_floating_point:
                count = line["payload_bytes"] // dtype.itemsize
                self.elements[dtype] = self.elements.get(dtype, 0) + count

    def types(self) -> str:
        """Types of the gradients on their way, comma-separated; "unknown" where nothing was seen."""
        least = SMALL * sum(self.elements.values())
        return ",".join(sorted(name_of(dtype) for dtype, count in self.elements.items() if count >= least)) or "unknown"
