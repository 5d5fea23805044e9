"""Butterfly (recursive doubling): fewest rounds, all bytes in each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from repro.comm.algorithm import Algorithm, Operation
from repro.comm.schedule import Busiest, Transfer, cut


class Butterfly(Algorithm):
    """Recursive doubling.

    Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005,
    section 4.5; the fold of ranks past a power of two as in MPICH.

    1. Ranks past the largest power of two q give their buffer to rank r - q.
    2. In round j the first q ranks exchange their whole sums with the rank that differs in bit j, and add.
       Addition commutes, so both partners hold the same bits.
    3. Ranks past q get the result back.

    Rounds ceil(log2 p) (+ 2 with a fold), path the same number x S.
    """

    title: ClassVar[str] = "butterfly"
    own: ClassVar[tuple[Operation, ...]] = ("all_reduce", "all_gather", "broadcast")

    def all_reduce(self, world: int, count: int, itemsize: int) -> Iterator[Transfer]:
        core = largest_power_of_two(world)
        folds = int(core < world)
        # 1. fold
        yield from (Transfer(0, rank, rank - core, 0, count, True) for rank in range(core, world))
        # 2. exchange
        for bit in range(core.bit_length() - 1):
            yield from (Transfer(folds + bit, rank, rank ^ (1 << bit), 0, count, True) for rank in range(core))
        # 3. unfold
        last = folds + core.bit_length() - 1
        yield from (Transfer(last, rank - core, rank, 0, count, False) for rank in range(core, world))

    def runs(self, operation: Operation, world: int) -> bool:
        # Doubling gathers blocks of 2^j neighbours: without a fold only.
        return super().runs(operation, world) and (operation != "all_gather" or largest_power_of_two(world) == world)

    def all_gather(self, world: int, count: int, itemsize: int) -> Iterator[Transfer]:
        """In round j partners exchange the 2^j segments that each has so far."""
        return doubling(cut(count, world), first_round=0)

    def broadcast(self, world: int, count: int, itemsize: int, root: int) -> Iterator[Transfer]:
        """In round j the 2^j ranks that have it send it 2^j further."""
        for bit in range((world - 1).bit_length()):
            for place in range(min(1 << bit, world - (1 << bit))):
                yield Transfer(bit, (root + place) % world, (root + place + (1 << bit)) % world, 0, count, False)

    def busiest(self, world: int, count: int, itemsize: int) -> Busiest:
        """Everything once a bit of q, and once more where a rank takes another one in."""
        core = largest_power_of_two(world)
        size = (core.bit_length() - 1 + int(core < world)) * count * itemsize
        return Busiest(size, size)


def largest_power_of_two(world: int) -> int:
    """The largest power of two that is at most `world`."""
    return 1 << (world.bit_length() - 1)


def doubling(segments: Sequence[tuple[int, int]], first_round: int) -> Iterator[Transfer]:
    """All-gather by recursive doubling; rank r starts with segment r; as many ranks as segments, a power of two."""
    for bit in range(len(segments).bit_length() - 1):
        size = 1 << bit
        for rank in range(len(segments)):
            low = rank // size * size
            start, stop = segments[low][0], segments[low + size - 1][1]
            yield Transfer(first_round + bit, rank, rank ^ size, start, stop, False)
