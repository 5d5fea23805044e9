"""Recursive halving and doubling (Rabenseifner): the bytes of a ring in a logarithmic number of rounds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from pydantic import Field

from repro.comm.algorithm import Algorithm, Operation, per_chunk
from repro.comm.algorithms.butterfly import doubling, in_pieces, largest_power_of_two
from repro.comm.schedule import Busiest, Span, Transfer, cut


class HalvingDoubling(Algorithm):
    """Reduce-scatter by recursive halving, all-gather by recursive doubling.

    Source: Rabenseifner, "Optimization of collective reduction operations", ICCS 2004; Thakur, Rabenseifner and Gropp,
    2005, section 4.5.

    1. Ranks past the largest power of two q send their buffer to rank r - q.
    2. Halving: with distance q/2, q/4, ..., 1 partners exchange halves of their current block, each adding the
       half it keeps; rank r ends with segment r of q.
    3. Doubling: with distance 1, 2, ..., q/2 partners exchange their finished segments.
    4. Rank r - q sends the result back to rank r.
    5. Messages are sent in pieces, as in the butterfly.

    Rounds 2 log2 q, path 2(q-1)/q x S; with a fold 2 rounds and 2 S more.
    """

    title: ClassVar[str] = "halving-doubling"
    own: ClassVar[tuple[Operation, ...]] = ("all_reduce", "all_gather", "reduce_scatter")

    chunk_kib: float = Field(256.0, gt=0, description="piece of a message, so that sums overlap with transfers, KiB")

    def all_reduce(self, world: int, count: int, itemsize: int) -> Iterator[Transfer]:
        # 5. pieces
        return in_pieces(self._whole(world, count), per_chunk(self.chunk_kib, itemsize))

    def _whole(self, world: int, count: int) -> Iterator[Transfer]:
        core = largest_power_of_two(world)
        folds, bits = int(core < world), core.bit_length() - 1
        segments = cut(count, core)
        # 1. fold
        yield from (Transfer(0, rank, rank - core, 0, count, True) for rank in range(core, world))
        # 2. halving
        yield from halving(segments, first_round=folds)
        # 3. doubling
        yield from doubling(segments, first_round=folds + bits)
        # 4. unfold
        last = folds + 2 * bits
        yield from (Transfer(last, rank - core, rank, 0, count, False) for rank in range(core, world))

    def runs(self, operation: Operation, world: int) -> bool:
        # A fold would move segments to ranks that do not own them.
        return super().runs(operation, world) and (operation == "all_reduce" or largest_power_of_two(world) == world)

    def all_gather(self, world: int, count: int, itemsize: int) -> Iterator[Transfer]:
        return in_pieces(doubling(cut(count, world), first_round=0), per_chunk(self.chunk_kib, itemsize))

    def reduce_scatter(self, world: int, count: int, itemsize: int) -> Iterator[Transfer]:
        return in_pieces(halving(cut(count, world), first_round=0), per_chunk(self.chunk_kib, itemsize))

    def busiest(self, world: int, count: int, itemsize: int) -> Busiest:
        """Rank r sends all but segment r, then blocks of 1, 2, ..., q/2 segments; S more to add a rank past q."""
        core = largest_power_of_two(world)
        segments = cut(count, core)
        found = []
        for rank in range(core):
            blocks = sum(segments[rank // size * size + size - 1].stop - segments[rank // size * size].start
                         for size in (1 << bit for bit in range(core.bit_length() - 1)))
            guest = count if rank + core < world else 0
            found.append(count - segments[rank].size + blocks + guest)
        return Busiest(max(found) * itemsize, max(found) * itemsize)


def halving(segments: list[Span], first_round: int) -> Iterator[Transfer]:
    """Reduce-scatter by recursive halving; rank r ends with segment r; one rank per segment, a power of two."""
    world = len(segments)
    distance, step = world // 2, 0
    while distance:
        for rank in range(world):
            low = (rank ^ distance) // distance * distance
            span = segments[low].start, segments[low + distance - 1].stop
            yield Transfer(first_round + step, rank, rank ^ distance, *span, True)
        distance, step = distance // 2, step + 1
