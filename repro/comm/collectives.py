"""The schedules that an algorithm gives for collectives, and what can be computed from them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import ClassVar, Literal

from repro.comm.schedule import Busiest, ScheduleCost, Transfer, cost
from repro.seams.training import Comm

Operation = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast"]
OPERATIONS: tuple[Operation, ...] = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")


class Collectives(Comm):
    """The schedules of an algorithm: `own` names its collectives, one method each gives the schedule.

    All other collectives pass through to the inner group (gloo or NCCL).
    """

    title: ClassVar[str]
    own: ClassVar[tuple[Operation, ...]]

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

    def sent(self, operation: str, world: int, count: int, itemsize: int) -> tuple[int, int, int] | None:
        if operation not in ("all_reduce", "all_gather") or not self.runs(operation, world):  # type: ignore[arg-type]
            return None
        transfers = list(getattr(self, operation)(world, count, itemsize))
        by_rank = [0] * world
        for item in transfers:
            by_rank[item.source] += (item.stop - item.start) * itemsize
        found = cost(transfers, itemsize)
        return max(by_rank), found.rounds, found.path_bytes

    # ---- formulas, for an all-reduce

    @abstractmethod
    def busiest(self, world: int, count: int, itemsize: int) -> Busiest:
        """Return the bytes that the busiest rank sends and receives, in closed form."""

    def cost(self, world: int, count: int, itemsize: int) -> ScheduleCost:
        """Return rounds, path and reduction of the schedule."""
        return cost(self.all_reduce(world, count, itemsize), itemsize)

    def passes_through(self, world: int) -> list[str]:
        """Return the collectives that the inner group runs, by the names that the plan shows."""
        return [operation for operation in OPERATIONS if not self.runs(operation, world)]


def per_chunk(chunk_kib: float | None, itemsize: int) -> int | None:
    """Return the elements of one chunk, at least one; None if there are no chunks."""
    return None if chunk_kib is None else max(1, int(chunk_kib * 1024) // itemsize)

