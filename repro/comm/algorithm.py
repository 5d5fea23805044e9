"""Base class of the communication algorithms: plug-ins whose schedules replace the backend's own collectives."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import PrivateAttr

from repro.comm.schedule import Busiest, ScheduleCost, Transfer, cost
from repro.seams.plugin import Setting
from repro.seams.training import Comm, CommRan

if TYPE_CHECKING:
    from repro.comm.runtime.group import AlgorithmGroup

Operation = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast"]
OPERATIONS: tuple[Operation, ...] = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")


class Algorithm(Comm):
    """A communication algorithm; subclasses list their collectives in `own` and give a schedule for each.

    All other collectives pass through to the inner group (gloo or NCCL).
    """

    title: ClassVar[str]
    own: ClassVar[tuple[Operation, ...]]
    preload: ClassVar[tuple[str, ...]] = ("torch", "torch.distributed", "repro.comm.runtime.group")

    _group: AlgorithmGroup | None = PrivateAttr(None)

    # ---- schedules

    @abstractmethod
    def all_reduce(self, world: int, count: int, itemsize: int) -> Iterable[Transfer]:
        """Reduce the `count` elements of every rank; every rank ends with the result."""

    def all_gather(self, world: int, count: int, itemsize: int) -> Iterable[Transfer]:
        """Gather `count` elements on every rank; rank r starts with `cut(count, world)[r]`."""
        raise NotImplementedError

    def reduce_scatter(self, world: int, count: int, itemsize: int) -> Iterable[Transfer]:
        """Reduce `count` elements; rank r ends with `cut(count, world)[r]`, the rest of its buffer is scratch."""
        raise NotImplementedError

    def broadcast(self, world: int, count: int, itemsize: int, root: int) -> Iterable[Transfer]:
        """Copy the root's `count` elements to every rank."""
        raise NotImplementedError

    def runs(self, operation: Operation, world: int) -> bool:
        """Return True if the algorithm has a schedule for this collective on `world` ranks."""
        return operation in self.own

    def delegates(self, world: int, size: int, itemsize: int) -> bool:
        """Return True if the inner group is expected to be faster for an all-reduce of `size` bytes."""
        return False

    # ---- formulas, for an all-reduce

    @abstractmethod
    def busiest(self, world: int, count: int, itemsize: int) -> Busiest:
        """Return the bytes that the busiest rank sends and receives, in closed form."""

    def cost(self, world: int, count: int, itemsize: int) -> ScheduleCost:
        """Return rounds, path and reduction of the schedule."""
        return cost(self.all_reduce(world, count, itemsize), itemsize)

    # ---- the plug-in

    def unsupported(self, setting: Setting) -> str | None:
        if setting.device == "cuda" and setting.processes > max(1, setting.device_count):
            return f"NCCL needs one GPU per rank: {setting.processes} ranks, {setting.device_count} GPUs"
        return None

    def passes_through(self, world: int) -> list[str]:
        """Return the collectives that the inner group runs, by the names that the plan shows."""
        return [operation for operation in OPERATIONS if not self.runs(operation, world)]

    def note(self, setting: Setting) -> str | None:
        through = self.passes_through(setting.processes)
        inner = "NCCL" if setting.device == "cuda" else "gloo"
        return f"{', '.join(through)} and less common collectives pass through to {inner}" if through else None

    def start(self, rank: int, world: int, device: str, timeout_seconds: float) -> None:
        from repro.comm.runtime.group import start_group

        self._group = start_group(self, rank, world, device, timeout_seconds)

    def effective(self) -> str:
        """Return the algorithm, the inner backend and which of them ran which of the called collectives."""
        return self._group.describe() if self._group else "none"

    def ran(self) -> CommRan | None:
        return CommRan(self.title, tuple(sorted(self._group.ran))) if self._group else None

    def traffic(self) -> dict[str, Any]:
        return self._group.meter.take() if self._group else {}

    def returned(self, since: float | None = None) -> None:
        if self._group:
            self._group.meter.returned(since)

    def inline(self) -> AbstractContextManager[None]:
        return self._group.lane.inline() if self._group else super().inline()


def per_chunk(chunk_kib: float | None, itemsize: int) -> int | None:
    """Return the elements of one chunk, at least one; None if there are no chunks."""
    return None if chunk_kib is None else max(1, int(chunk_kib * 1024) // itemsize)

