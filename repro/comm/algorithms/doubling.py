"""Recursive doubling: the butterfly, with the fewest rounds, and halving and doubling, with the bytes of a ring."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

from pydantic import Field

from repro.comm.algorithm import Algorithm, Operation, per_chunk
from repro.comm.schedule import Span, Transfer, chunks, cut


class _Doubling(Algorithm):
    """Ranks past the largest power of two q hand their buffer to another one; messages are sent in pieces."""

    passes: ClassVar[int]
    """Rounds of `exchange` per bit of q."""

    chunk_kib: float = Field(256.0, gt=0, description="piece of a message, so that sums overlap with transfers, KiB")

    def all_reduce(self, world: int, count: int, itemsize: int) -> Iterator[Transfer]:
        return in_pieces(self._whole(world, count), per_chunk(self.chunk_kib, itemsize))

    def _whole(self, world: int, count: int) -> Iterator[Transfer]:
        core = largest_power_of_two(world)
        folds, bits = int(core < world), core.bit_length() - 1
        # fold
        yield from (Transfer(0, rank, rank - core, 0, count, True) for rank in range(core, world))
        yield from self.exchange(core, count, folds)
        # unfold
        last = folds + self.passes * bits
        yield from (Transfer(last, rank - core, rank, 0, count, False) for rank in range(core, world))

    @abstractmethod
    def exchange(self, core: int, count: int, first_round: int) -> Iterator[Transfer]:
        """Reduce among the first `core` ranks, a power of two."""

    def runs(self, operation: Operation, world: int) -> bool:
        # Doubling gathers blocks of 2^j neighbours, and a fold would move segments to ranks that do not own them.
        whole = operation in ("all_reduce", "broadcast")
        return super().runs(operation, world) and (whole or largest_power_of_two(world) == world)

    def all_gather(self, world: int, count: int, itemsize: int) -> Iterator[Transfer]:
        """Gather by doubling: in round j partners exchange the 2^j segments that each has so far."""
        return in_pieces(doubling(cut(count, world), first_round=0), per_chunk(self.chunk_kib, itemsize))


class Butterfly(_Doubling):
    """Recursive doubling.

    Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005,
    section 4.5; the fold of ranks past a power of two as in MPICH.

    1. Ranks past the largest power of two q send their buffer to rank r - q.
    2. In round j the first q ranks exchange their whole sums with the rank that differs in bit j and add them.
       Addition commutes, so both partners hold the same bits.
    3. Rank r - q sends the result back to rank r.
    4. A message is sent in pieces: a partner posts its receives before the link is full of its own data, and sums
       overlap with transfers.

    Rounds ceil(log2 p) (+ 2 with a fold), path the same number x S.
    """

    title: ClassVar[str] = "butterfly"
    own: ClassVar[tuple[Operation, ...]] = ("all_reduce", "all_gather", "broadcast")

    passes = 1

    def exchange(self, core: int, count: int, first_round: int) -> Iterator[Transfer]:
        for bit in range(core.bit_length() - 1):
            yield from (Transfer(first_round + bit, rank, rank ^ (1 << bit), 0, count, True) for rank in range(core))

    def broadcast(self, world: int, count: int, itemsize: int, root: int) -> Iterator[Transfer]:
        """Broadcast by doubling: in round j the 2^j ranks that have the data send them 2^j ranks further."""
        for bit in range((world - 1).bit_length()):
            for place in range(min(1 << bit, world - (1 << bit))):
                yield Transfer(bit, (root + place) % world, (root + place + (1 << bit)) % world, 0, count, False)


def largest_power_of_two(world: int) -> int:
    """Return the largest power of two that is at most `world`."""
    return 1 << (world.bit_length() - 1)


def in_pieces(transfers: Iterable[Transfer], size: int | None) -> Iterator[Transfer]:
    """Cut every transfer into pieces of `size` elements; a round becomes one round per piece of its largest transfer.
    """
    rounds: dict[int, list[tuple[Transfer, list[Span]]]] = {}
    for item in transfers:
        rounds.setdefault(item.round, []).append((item, chunks(Span(item.start, item.stop), size)))
    first = 0
    for _, items in sorted(rounds.items()):
        for item, pieces in items:
            for index, piece in enumerate(pieces):
                yield Transfer(first + index, item.source, item.target, *piece, item.adds)
        first += max(len(pieces) for _, pieces in items)


def doubling(segments: Sequence[tuple[int, int]], first_round: int) -> Iterator[Transfer]:
    """All-gather by recursive doubling; rank r starts with segment r; one rank per segment, a power of two."""
    for bit in range(len(segments).bit_length() - 1):
        size = 1 << bit
        for rank in range(len(segments)):
            low = rank // size * size
            start, stop = segments[low][0], segments[low + size - 1][1]
            yield Transfer(first_round + bit, rank, rank ^ size, start, stop, False)


class HalvingDoubling(_Doubling):
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

    passes = 2

    def exchange(self, core: int, count: int, first_round: int) -> Iterator[Transfer]:
        segments = cut(count, core)
        # 2. halving
        yield from halving(segments, first_round)
        # 3. doubling
        yield from doubling(segments, first_round + core.bit_length() - 1)

    def reduce_scatter(self, world: int, count: int, itemsize: int) -> Iterator[Transfer]:
        return in_pieces(halving(cut(count, world), first_round=0), per_chunk(self.chunk_kib, itemsize))


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
