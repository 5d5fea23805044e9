"""What every algorithm is: a plug-in whose schedules replace the backend's own collectives, for any engine."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import PrivateAttr

from repro.comm.schedule import Busiest, Cost, Transfer, cost
from repro.seams.plugin import Setting
from repro.seams.training import Comm, CommRan

if TYPE_CHECKING:
    from repro.comm.runtime.group import AlgorithmGroup

Operation = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast"]
OPERATIONS: tuple[Operation, ...] = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")


class Algorithm(Comm):
    """A communication algorithm; subclasses say in `own` which collectives they do and give a schedule for each.

    All other collectives pass through to the inner group (gloo or NCCL).
    """

    title: ClassVar[str]
    own: ClassVar[tuple[Operation, ...]]
    preload: ClassVar[tuple[str, ...]] = ("torch", "torch.distributed", "repro.comm.runtime.group")

    _group: AlgorithmGroup | None = PrivateAttr(None)

    # ---- schedules

    @abstractmethod
    def all_reduce(self, world: int, count: int, itemsize: int) -> Iterable[Transfer]:
        """Every rank's `count` elements become their reduction."""

    def all_gather(self, world: int, count: int, itemsize: int) -> Iterable[Transfer]:
        """Of `count` elements, rank r starts with `cut(count, world)[r]`, and all end with all."""
        raise NotImplementedError

    def reduce_scatter(self, world: int, count: int, itemsize: int) -> Iterable[Transfer]:
        """Of `count` elements, rank r ends with `cut(count, world)[r]` reduced; the rest of its buffer is scratch."""
        raise NotImplementedError

    def broadcast(self, world: int, count: int, itemsize: int, root: int) -> Iterable[Transfer]:
        """All end with the root's `count` elements."""
        raise NotImplementedError

    def runs(self, operation: Operation, world: int) -> bool:
        """Whether the algorithm does this collective itself on `world` ranks."""
        return operation in self.own

    def leaves(self, world: int, size: int, itemsize: int) -> bool:
        """Whether an all-reduce of `size` bytes is better left to the inner group."""
        return False

    # ---- formulas, for an all-reduce

    @abstractmethod
    def busiest(self, world: int, count: int, itemsize: int) -> Busiest:
        """Bytes that the busiest rank sends and receives, in closed form."""

    def cost(self, world: int, count: int, itemsize: int) -> Cost:
        """Latencies, path and reduction of the schedule."""
        return cost(self.all_reduce(world, count, itemsize), itemsize)

    # ---- the plug-in

    def unsupported(self, setting: Setting) -> str | None:
        if setting.device == "cuda" and setting.processes > max(1, setting.device_count):
            return f"NCCL links need a GPU a rank: {setting.processes} ranks, {setting.device_count} GPUs"
        return None

    def passes_through(self, world: int) -> list[str]:
        """The collectives left to the inner group, as the plan says them."""
        return [operation for operation in OPERATIONS if not self.runs(operation, world)]

    def note(self, setting: Setting) -> str | None:
        through = self.passes_through(setting.processes)
        inner = "NCCL" if setting.device == "cuda" else "gloo"
        return f"{', '.join(through)} and everything rarer pass through to {inner}" if through else None

    def start(self, rank: int, world: int, device: str, timeout_seconds: float) -> None:
        from repro.comm.runtime.group import start_group

        self._group = start_group(self, rank, world, device, timeout_seconds)

    def effective(self) -> str:
        """Algorithm, inner backend and what ran as whose: counted from the collectives that were called."""
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
    """Elements of one chunk, at least one; None: no chunks."""
    return None if chunk_kib is None else max(1, int(chunk_kib * 1024) // itemsize)

