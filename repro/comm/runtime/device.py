"""Order of a lane's collectives relative to the caller's work: immediate on a CPU, a side stream on CUDA."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch


class OnCpu:
    """On a CPU the caller's work on a tensor is finished when it submits the tensor."""

    on_host: ClassVar[bool] = True
    """Stamps are times of the host."""

    def stamp(self) -> Any:
        """Note the present moment of the current stream."""
        return time.perf_counter()

    def seconds(self, stamp: Any) -> float:
        """Return a stamp as seconds from a moment that all stamps share; waits until the stream has reached it."""
        return float(stamp)

    def mark(self) -> Any:
        """Record the current point of the caller's stream."""
        return None

    @contextmanager
    def after(self, mark: Any, tensors: Sequence[torch.Tensor]) -> Iterator[None]:
        """Run the block's work on `tensors` after `mark`."""
        yield

    def join(self, mark: Any) -> None:
        """Run the caller's further work after `mark`."""


class OnCuda(OnCpu):
    """Kernels and NCCL calls run on a separate stream, ordered by events; the host never waits."""

    on_host: ClassVar[bool] = False

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.origin = self.stamp()

    def stamp(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    def seconds(self, stamp: Any) -> float:
        stamp.synchronize()
        return float(self.origin.elapsed_time(stamp)) / 1e3

    def mark(self) -> Any:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    @contextmanager
    def after(self, mark: Any, tensors: Sequence[torch.Tensor]) -> Iterator[None]:
        with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
            self.stream.wait_event(mark)
            for tensor in tensors:
                # The allocator must not give the memory away while this stream still uses it.
                tensor.record_stream(self.stream)
            yield

    def join(self, mark: Any) -> None:
        torch.cuda.current_stream(self.device).wait_event(mark)
