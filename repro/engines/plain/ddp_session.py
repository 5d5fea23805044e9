"""A model in training under DDP."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from repro.engines.plain.hooks import Hooks
from repro.engines.plain.loop import LoopSession
from repro.engines.plain.reduction_dtypes import ReductionWatcher
from repro.seams.training import Batch, Job, TrainingParts


class DdpSession(LoopSession):
    """The plain loop around a DDP module.

    Args:
        broadcast_buffers: copy rank 0's buffers before each forward pass.
        send: bucketed, layerwise or blocking.
        options: further ones of DDP that the trial chooses.
    """

    wrapped: DistributedDataParallel

    def __init__(
        self, parts: TrainingParts, job: Job, broadcast_buffers: bool, send: str = "bucketed", **options: Any,
    ) -> None:
        self.options = options
        self.hooks = Hooks(replace(job, overlap=False) if send == "blocking" else job)
        super().__init__(parts, job, self.wrap)
        self.wrapped.broadcast_buffers = broadcast_buffers  # set here: the argument has another name since torch 2.13
        self.hooks.register(self.wrapped)

    def wrap(self, model: torch.nn.Module) -> DistributedDataParallel:
        """Return the model under DDP."""
        return DistributedDataParallel(
            model,
            device_ids=[self.device.index] if self.device.type == "cuda" else None,
            # Gradients are stored inside the buckets: saves a copy and the memory of all gradients; values are equal.
            gradient_as_bucket_view=True,
            **self.options,
        )

    def factor_layers(self) -> int:
        """Return how many layers send sufficient factors in place of their gradient."""
        return 0

    def local(self) -> AbstractContextManager[Any]:
        return self.wrapped.no_sync()

    def backward(self, batches: Sequence[Batch]) -> torch.Tensor:
        loss = super().backward(batches)
        # DDP waits for its buckets inside C++.
        self.job.comm.returned(self.hooks.computed)
        return loss

    def warm_up(self, batches: Sequence[Batch]) -> None:
        self.hooks.watch(ReductionWatcher(self.reductions.elements))
        super().warm_up(batches)
        self.hooks.watch(None)
        self.hooks.reset()

    def own_tensors(self) -> dict[str, torch.Tensor]:
        return self.hooks.power.tensors() if self.hooks.power else {}

    def own_state(self) -> dict[str, Any]:
        return self.hooks.power.plain() if self.hooks.power else {}

    def load_own(self, tensors: dict[str, torch.Tensor], own: Mapping[str, Any]) -> None:
        if self.hooks.power:
            self.hooks.power.load(tensors, own, self.device)

    def effective(self) -> dict[str, str]:
        log = self.wrapped._get_ddp_logging_data()  # type: ignore[no-untyped-call]
        sizes = str(log.get("rebuilt_bucket_sizes") or log.get("bucket_sizes") or "")
        return {
            **super().effective(),
            **self._sent(sizes),
            "compression": self.hooks.compression(bool(log.get("comm_hook"))),
            "overlap": self.hooks.overlap(bool(log.get("comm_hook"))),
            "gradient_as_bucket_view": "on" if log.get("gradient_as_bucket_view") else "off",
            "broadcast_buffers": _switch(self.wrapped.broadcast_buffers and bool(self.wrapped.modules_buffers)),
            "static_graph": _switch(self.wrapped.static_graph),
            "find_unused": _switch(self.wrapped.find_unused_parameters),
            "buckets": str(len(sizes.split(","))) if sizes else "unknown",
            "bucket_bytes": sizes.replace(" ", "") or "unknown",
        }

    def _sent(self, sizes: str) -> dict[str, str]:
        """Return how gradients leave, read from DDP's buckets, its hook and the layers that send factors."""
        tensors = len(self.parameters) - self.factor_layers()
        alone = bool(sizes) and len(sizes.split(",")) == tensors
        late = self.hooks.overlap(True) == "off"
        return {"send": ("blocking" if late else "layerwise") if alone and self.options.get("bucket_cap_mb", 1) < 1e-5
                else "bucketed", "factor_layers": str(self.factor_layers())}

    def close(self) -> None:
        # Reducer and gradients (views of its buckets) hold the group. If they outlived it, the last of them would wait
        # for gloo's threads while it holds the interpreter lock that those threads need: a hang, observed in tests.
        self.clear_gradients()
        self.hooks.close()
        del self.wrapped, self.hooks
        gc.collect()
        super().close()


def _switch(value: bool) -> str:
    return "on" if value else "off"
