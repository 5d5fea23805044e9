"""A model in training under DDP, and the hooks that send its buckets: compressed or not, with or without overlap."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    allreduce_hook,
    bf16_compress_hook,
    fp16_compress_hook,
)
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from repro.core import devices
from repro.core.devices import on_gpu
from repro.engines.plain.loop import LoopSession
from repro.engines.plain.numerics import ReductionWatcher
from repro.engines.plain.session import switch
from repro.seams.training import Batch, Comm, Job, TrainingParts

Bucket = Any
Future = Any
Send = Callable[[Bucket], Future]
Registered = Sequence[tuple[Any, Any]]
"""Hooks of a DDP module and their states."""
PLAIN: dict[str, Callable[[Any, Any], Future]] = {
    "none": allreduce_hook, "fp16": fp16_compress_hook, "bf16": bf16_compress_hook,
}


class Hooks:
    """The hook of one DDP module; not registered if DDP's default is requested (no compression, overlap)."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.power: PowerSgd | None = None
        self.computed: float | None = None
        """Time of back-propagation's last bucket (`time.perf_counter`)."""
        if job.compression == "powersgd":
            self.power = PowerSgd(job.comm, job.compression_rank)
            self.send: Send = self.power
        else:
            self.send = partial(PLAIN[job.compression], dist.group.WORLD)
        if job.overlap is False:
            self.send = Deferred(self.send)

    def register(self, wrapped: DistributedDataParallel) -> None:
        """Register with `wrapped`, if needed."""
        if self.job.compression != "none" or self.job.overlap is False:
            wrapped.register_comm_hook(self, _call)

    def __call__(self, bucket: Bucket) -> Future:
        if bucket.is_last():
            self.computed = time.perf_counter()
        return self.send(bucket)

    def compression(self, registered: Registered) -> str:
        """Return the effective compression of gradients; of hooks that are not this one, their names.

        Args:
            registered: the hooks that DDP calls, each with its state.
        """
        if not registered:
            return "none"
        if len(registered) > 1 or registered[0][1] is not self:
            return f"hook {', '.join(getattr(hook, '__qualname__', repr(hook)) for hook, _ in registered)}"
        send = self.send.send if isinstance(self.send, Deferred) else self.send
        if isinstance(send, PowerSgd):
            return f"powersgd rank {send.state.matrix_approximation_rank}"
        return next((name for name, hook in PLAIN.items() if getattr(send, "func", None) is hook), "unknown")

    def overlap(self, registered: Registered) -> str:
        """Return "on" if buckets are sent while back-propagation still runs, else "off"."""
        return "off" if registered and isinstance(self.send, Deferred) else "on"


def _call(hooks: Hooks, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    future: torch.futures.Future[torch.Tensor] = hooks(bucket)
    return future


# DDP checks the annotations at run time; deferred ones would be strings.
_call.__annotations__ = {"bucket": GradBucket, "return": torch.futures.Future[torch.Tensor]}


class Deferred:
    """Holds all buckets back until the last one is ready: the same buckets without overlap."""

    def __init__(self, send: Send) -> None:
        self.send = send
        self.waiting: list[tuple[Bucket, Future]] = []

    def __call__(self, bucket: Bucket) -> Future:
        promise = _promise(bucket)
        self.waiting.append((bucket, promise))
        if bucket.is_last():
            waiting, self.waiting = self.waiting, []
            for kept, promised in waiting:
                self.send(kept).add_done_callback(partial(_pass_on, promised))
        return promise


def _promise(bucket: Bucket) -> Future:
    """Return a future that is aware of the bucket's device: DDP's stream then waits for the work behind its value.

    A future without devices records no event, and the optimizer would read gradients that are still on their way.
    """
    device = bucket.buffer().device
    return new_future([device] if on_gpu(device) else [])


def new_future(devices: list[torch.device]) -> Future:
    """Return a future whose value lies on these devices."""
    return torch.futures.Future(devices=[*devices])


def _pass_on(promise: Future, done: Future) -> None:
    try:
        promise.set_result(done.value())
    except RuntimeError as error:
        promise.set_exception(error)


class PowerSgd:
    """torch's PowerSGD (Vogels, Karimireddy and Jaggi, 2019), bucket after bucket on a separate thread.

    Its second all-reduce starts after the first has ended. With one thread all ranks start them in the same order,
    independent of their speed.
    """

    REMEMBERED = ("error_dict", "p_memory_dict", "q_memory_dict")
    COUNTED = ("iter", "total_numel_before_compression", "total_numel_after_compression", "next_stats_report")

    def __init__(self, comm: Comm, rank: int) -> None:
        self.comm, self.rank = comm, rank
        self.thread = ThreadPoolExecutor(1, "PowerSGD")
        self.watched: AbstractContextManager[Any] | None = None
        """Entered around everything that is sent from the thread."""
        self.reset()

    def reset(self) -> None:
        """Start with an empty state."""
        # Two uncompressed steps first: DDP rebuilds its buckets after the first, and error feedback is kept by bucket.
        self.state = PowerSGDState(
            dist.group.WORLD, matrix_approximation_rank=self.rank, start_powerSGD_iter=2
        )

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors of earlier steps, by kind and bucket; errors differ between ranks."""
        return {f"{kind}.{bucket}": tensor for kind in self.REMEMBERED
                for bucket, tensor in getattr(self.state, kind).items()}

    def plain(self) -> dict[str, Any]:
        """Return the rest of the state (JSON-like)."""
        state: Any = self.state.rng.get_state()
        kind, keys, *rest = state
        return {**{name: getattr(self.state, name) for name in self.COUNTED}, "rng": [kind, keys.tolist(), *rest]}

    def load(self, tensors: dict[str, torch.Tensor], plain: Mapping[str, Any], device: torch.device) -> None:
        """Load what `tensors` and `plain` returned."""
        self.reset()
        for name, tensor in tensors.items():
            kind, _, bucket = name.partition(".")
            if kind in self.REMEMBERED:
                getattr(self.state, kind)[int(bucket)] = tensor.to(device)
        for name in self.COUNTED:
            setattr(self.state, name, plain[name])
        kind, keys, *rest = plain["rng"]
        self.state.rng.set_state((kind, np.asarray(keys, dtype=np.uint32), *rest))

    def __call__(self, bucket: Bucket) -> Future:
        promise = _promise(bucket)
        device = bucket.buffer().device
        ready = devices.event(device) if on_gpu(device) else None
        self.thread.submit(self._send, bucket, promise, ready)
        return promise

    def _send(self, bucket: Bucket, promise: Future, ready: torch.Event | None) -> None:
        device = bucket.buffer().device
        try:
            with self.watched or nullcontext(), self.comm.inline():
                if ready:
                    devices.use(device)  # of this thread
                    devices.current_stream(device).wait_event(ready)
                promise.set_result(powerSGD_hook(self.state, bucket).wait())
        except Exception as error:
            # Raised here it would be lost: DDP, which waits for the promise, raises it in the training thread.
            promise.set_exception(error)

    def close(self) -> None:
        self.thread.shutdown()


class DdpSession(LoopSession):
    """The plain loop around a DDP module.

    Args:
        broadcast_buffers: copy rank 0's buffers before each forward pass.
        send: bucketed, layerwise or blocking.
        options: further ones of DDP that the trial chooses.
    """

    writes_alike = True
    wrapped: DistributedDataParallel

    def __init__(
        self, parts: TrainingParts, job: Job, broadcast_buffers: bool, send: str = "bucketed", **options: Any,
    ) -> None:
        self.options = options
        self.hooks = Hooks(replace(job, overlap=False) if send == "blocking" else job)
        super().__init__(parts, job)
        self.wrapped.broadcast_buffers = broadcast_buffers  # set here: the argument has another name since torch 2.13
        self.hooks.register(self.wrapped)

    def wrap(self, model: torch.nn.Module) -> DistributedDataParallel:
        return DistributedDataParallel(
            model,
            device_ids=devices.gpus_of(self.device) or None,
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
        if (power := self.hooks.power) is None:
            super().warm_up(batches)
            return
        power.watched = ReductionWatcher(self.reductions.elements)
        super().warm_up(batches)
        power.watched = None
        power.reset()

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
        buckets = sizes.split(",") if sizes else []
        overlap = self.hooks.overlap(self.wrapped._comm_hooks)
        alone = bool(buckets) and len(buckets) == len(self.parameters) - self.factor_layers()
        send = "blocking" if overlap == "off" else "layerwise"
        return {
            **super().effective(),
            "send": send if alone and self.options.get("bucket_cap_mb", 1) < 1e-5 else "bucketed",
            "factor_layers": str(self.factor_layers()),
            "compression": self.hooks.compression(self.wrapped._comm_hooks),
            "overlap": overlap,
            "gradient_as_bucket_view": switch(bool(log.get("gradient_as_bucket_view"))),
            "broadcast_buffers": switch(self.wrapped.broadcast_buffers and bool(self.wrapped.modules_buffers)),
            "static_graph": switch(self.wrapped.static_graph),
            "find_unused": switch(self.wrapped.find_unused_parameters),
            "buckets": str(len(buckets) or "unknown"),
            "bucket_bytes": sizes.replace(" ", "") or "unknown",
        }

    def close(self) -> None:
        # Reducer and gradients (views of its buckets) hold the group. If they outlived it, the last of them would wait
        # for gloo's threads while it holds the interpreter lock that those threads need: a hang, observed in tests.
        self.clear_gradients()
        if self.hooks.power:
            self.hooks.power.close()
        del self.wrapped, self.hooks
        gc.collect()
        super().close()
