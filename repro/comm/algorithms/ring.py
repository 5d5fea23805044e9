"""Ring all-reduce (Patarasuk and Yuan, 2009): fewest bytes for the busiest rank, latency grows with the number of
ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from pydantic import Field

from repro.comm.algorithm import Algorithm, Operation, per_chunk
from repro.comm.schedule import Busiest, Span, Transfer, chunks, cut

PIECES, LEAST_BYTES = 2, 64 << 10
"""Pieces of a segment. With one piece a neighbour waits while the other adds; with many small ones Python is the limit.
"""


class Ring(Algorithm):
    """Ring all-reduce, and its two halves as separate collectives.

    Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 2009;
    in deep learning since Gibiansky (Baidu), 2017.

    1. The buffer is cut into p segments, one per rank.
    2. Reduce-scatter: p - 1 rounds; in each, every rank passes a segment to its right-hand neighbour, which adds it.
    3. All-gather: p - 1 rounds; the finished segments go round once.

    Rounds 2(p-1), path 2(p-1)/p x S: the bound of any all-reduce whose ranks have one link each.
    """

    title: ClassVar[str] = "ring"
    own: ClassVar[tuple[Operation, ...]] = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")

    chunk_kib: float = Field(4096.0, gt=0, description="largest chunk of a segment, so that sums overlap transfers, "
                                                      "KiB; a segment is sent in two chunks of 64 KiB or more")

    def _chunks(self, segment: Span, itemsize: int) -> list[Span]:
        most = per_chunk(self.chunk_kib, itemsize) or 1
        return chunks(segment, min(most, max(LEAST_BYTES // itemsize, -(-segment.size // PIECES))))

    def all_reduce(self, world: int, count: int, itemsize: int) -> Iterator[Transfer]:
        # 1. one segment per rank
        segments = [self._chunks(span, itemsize) for span in cut(count, world)]
        ranks = list(range(world))
        # 2. reduce-scatter
        yield from circulate(segments, ranks, first_round=0, shift=0, adds=True)
        # 3. all-gather: rank r has finished segment r + 1
        yield from circulate(segments, ranks, first_round=rounds(segments), shift=1, adds=False)

    def all_gather(self, world: int, count: int, itemsize: int) -> Iterator[Transfer]:
        segments = [self._chunks(span, itemsize) for span in cut(count, world)]
        return circulate(segments, list(range(world)), first_round=0, shift=0, adds=False)

    def reduce_scatter(self, world: int, count: int, itemsize: int) -> Iterator[Transfer]:
        # Shifted by one relative to step 2, so that rank r ends with segment r.
        segments = [self._chunks(span, itemsize) for span in cut(count, world)]
        return circulate(segments, list(range(world)), first_round=0, shift=-1, adds=True)

    def broadcast(self, world: int, count: int, itemsize: int, root: int) -> Iterator[Transfer]:
        """Send along the chain root, root + 1, ..., one chunk per round."""
        for index, piece in enumerate(chunks(Span(0, count), per_chunk(min(self.chunk_kib, 256.0), itemsize))):
            for hop in range(world - 1):
                yield Transfer(index + hop, (root + hop) % world, (root + hop + 1) % world, *piece, False)

    def busiest(self, world: int, count: int, itemsize: int) -> Busiest:
        """Rank r sends everything twice except segments r + 1 and r + 2: 2(p-1)/p x S if p divides the elements."""
        return ring_busiest(world, count, itemsize)


def ring_busiest(world: int, count: int, itemsize: int) -> Busiest:
    """Return the bytes of a ring's busiest rank: everything twice except the smallest pair of neighbouring segments."""
    if world == 1:
        return Busiest(0, 0)
    sizes = [span.size for span in cut(count, world)]
    spared = min(sizes[rank] + sizes[(rank + 1) % world] for rank in range(world))
    return Busiest((2 * count - spared) * itemsize, (2 * count - spared) * itemsize)


def rounds(segments: list[list[Span]]) -> int:
    """Return the rounds of one circulation: every chunk of the largest segment passes p - 1 neighbours."""
    return (len(segments) - 1) * max(len(pieces) for pieces in segments)


def circulate(
    segments: list[list[Span]], ranks: list[int], first_round: int, shift: int, adds: bool
) -> Iterator[Transfer]:
    """Send segments once round the ring `ranks`: in step s, the rank at place i passes segment i + shift - s to its
    right.
    """
    world = len(ranks)
    most = max(len(pieces) for pieces in segments)
    for step in range(world - 1):
        for place, rank in enumerate(ranks):
            for index, piece in enumerate(segments[(place + shift - step) % world]):
                yield Transfer(first_round + step * most + index, rank, ranks[(place + 1) % world], *piece, adds)
