"""Where a lane's collectives run relative to the caller's own work: nowhere special on a CPU, a side stream on CUDA."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch


class OnCpu:
    """The calling thread's work is done when it hands a tensor over."""

    def mark(self) -> Any:
        """A point of the caller's stream."""
        return None

    @contextmanager
    def after(self, mark: Any, tensors: Sequence[torch.Tensor]) -> Iterator[None]:
        """Inside, work on `tensors` comes after `mark`."""
        yield

    def join(self, mark: Any) -> None:
        """What the caller does from here on comes after `mark`."""


class OnCuda(OnCpu):
    """Kernels and NCCL calls go to a stream of their own, ordered by events; the host waits for nothing."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

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
