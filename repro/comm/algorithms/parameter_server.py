"""Parameter server with k shards: all ranks push to the owners, the owners send the sums back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from pydantic import Field

from repro.comm.algorithm import Algorithm, Operation
from repro.comm.schedule import Busiest, Transfer, cut
from repro.seams.plugin import Setting


class ParameterServer(Algorithm):
    """A synchronous parameter server whose shards live on the first k ranks.

    Source: Li et al., "Scaling distributed machine learning with the parameter server", OSDI 2014, as the star that
    FireCaffe (CVPR 2016, section 4.1) compares trees with.

    1. The buffer is cut into k shards; rank j owns shard j.
    2. Push: every rank sends each shard to its owner, which adds them in rank order.
    3. Pull: each owner sends its finished shard to all others.

    Two rounds; path 2(p-1)/k x S, with one server 2(p-1) S. With k = p this is a direct reduce-scatter and all-gather.
    """

    title: ClassVar[str] = "parameter server"
    own: ClassVar[tuple[Operation, ...]] = ("all_reduce", "broadcast")
    always_shown: ClassVar[tuple[str, ...]] = ("shards",)

    shards: int = Field(1, ge=1, description="servers among the ranks, each with an equal share")

    def unsupported(self, setting: Setting) -> str | None:
        if self.shards > setting.processes:
            return f"{self.shards} shards need as many ranks; there are {setting.processes}"
        return super().unsupported(setting)

    def all_reduce(self, world: int, count: int, itemsize: int) -> Iterator[Transfer]:
        # 1. shards
        shards = cut(count, min(self.shards, world))
        for owner, shard in enumerate(shards):
            others = [rank for rank in range(world) if rank != owner]
            # 2. push
            yield from (Transfer(0, rank, owner, *shard, True) for rank in others)
            # 3. pull
            yield from (Transfer(1, owner, rank, *shard, False) for rank in others)

    def broadcast(self, world: int, count: int, itemsize: int, root: int) -> Iterator[Transfer]:
        """Pull only: the root sends to each rank."""
        return (Transfer(0, root, rank, 0, count, False) for rank in range(world) if rank != root)

    def busiest(self, world: int, count: int, itemsize: int) -> Busiest:
        """Return the bytes of the owner of the largest shard s: it pushes S - s and sends back (p - 1) s, and receives
        as many.
        """
        largest = cut(count, min(self.shards, world))[0].size
        size = (count + (world - 2) * largest) * itemsize if world > 1 else 0
        return Busiest(size, size)
