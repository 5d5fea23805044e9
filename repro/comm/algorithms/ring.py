"""Rings: one of all ranks (Patarasuk and Yuan, 2009), or rings inside groups and between them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from repro.comm.algorithm import Algorithm, Operation, per_chunk
from repro.comm.schedule import Span, Transfer, chunks, cut
from repro.seams.plugin import Setting

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

    def _segments(self, world: int, count: int, itemsize: int) -> list[list[Span]]:
        """Return the chunks of each rank's segment."""
        most = per_chunk(self.chunk_kib, itemsize) or 1
        return [chunks(segment, min(most, max(LEAST_BYTES // itemsize, -(-segment.size // PIECES))))
                for segment in cut(count, world)]

    def all_reduce(self, world: int, count: int, itemsize: int) -> Iterator[Transfer]:
        # 1. one segment per rank
        segments, ranks = self._segments(world, count, itemsize), list(range(world))
        # 2. reduce-scatter
        yield from circulate(segments, ranks, first_round=0, shift=0, adds=True)
        # 3. all-gather: rank r has finished segment r + 1
        yield from circulate(segments, ranks, first_round=rounds(segments), shift=1, adds=False)

    def all_gather(self, world: int, count: int, itemsize: int) -> Iterator[Transfer]:
        segments = self._segments(world, count, itemsize)
        return circulate(segments, list(range(world)), first_round=0, shift=0, adds=False)

    def reduce_scatter(self, world: int, count: int, itemsize: int) -> Iterator[Transfer]:
        # Shifted by one relative to step 2, so that rank r ends with segment r.
        segments = self._segments(world, count, itemsize)
        return circulate(segments, list(range(world)), first_round=0, shift=-1, adds=True)

    def broadcast(self, world: int, count: int, itemsize: int, root: int) -> Iterator[Transfer]:
        """Send along the chain root, root + 1, ..., one chunk per round."""
        for index, piece in enumerate(chunks(Span(0, count), per_chunk(min(self.chunk_kib, 256.0), itemsize))):
            for hop in range(world - 1):
                yield Transfer(index + hop, (root + hop) % world, (root + hop + 1) % world, *piece, False)


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


class Hierarchical(Algorithm):
    """Rings inside groups of g neighbouring ranks and a ring between groups.

    Source: Jia et al., "Highly scalable deep learning training system with mixed-precision", arXiv:1807.11205,
    section 3.3 (`form: masters`); Mikami et al., arXiv:1811.05233 (`form: torus`).

    masters, 4(g-1) + 2(p/g-1) rounds:

    1. Reduce inside each group: ring reduce-scatter, then the members send their segments to the group's first rank.
    2. The masters all-reduce the whole buffer in a ring.
    3. Broadcast inside each group: the master scatters segments, a ring all-gathers them.

    torus, 2(g-1) + 2(p/g-1) rounds: reduce-scatter inside the group; the ranks that own the same segment all-reduce it
    between groups, all rings at once; all-gather inside the group.
    """

    title: ClassVar[str] = "hierarchical"
    own: ClassVar[tuple[Operation, ...]] = ("all_reduce",)
    always_shown: ClassVar[tuple[str, ...]] = ("group",)

    group: int = Field(2, ge=1, description="ranks of one group; must divide the number of ranks")
    form: Literal["masters", "torus"] = Field(
        "masters", description="masters: one rank per group talks to other groups; torus: every rank does")

    def unsupported(self, setting: Setting) -> str | None:
        if setting.processes % self.group:
            return f"groups of {self.group} do not divide {setting.processes} ranks"
        return super().unsupported(setting)

    def runs(self, operation: Operation, world: int) -> bool:
        return super().runs(operation, world) and world % self.group == 0

    def all_reduce(self, world: int, count: int, itemsize: int) -> Iterator[Transfer]:
        segments = cut(count, self.group)
        teams = [list(range(first, first + self.group)) for first in range(0, world, self.group)]
        return self._masters(teams, segments, count) if self.form == "masters" else self._torus(teams, segments)

    def _masters(self, teams: list[list[int]], segments: list[Span], count: int) -> Iterator[Transfer]:
        hops, owned = self.group - 1, [segments[(place + 1) % self.group] for place in range(self.group)]
        # 1. reduce inside the group
        for team in teams:
            yield from circulate([[span] for span in segments], team, 0, shift=0, adds=True)
            yield from (Transfer(hops + place - 1, team[place], team[0], *owned[place], False)
                        for place in range(1, self.group))
        # 2. the masters' ring
        across = 2 * (len(teams) - 1)
        yield from whole_ring(Span(0, count), [team[0] for team in teams], 2 * hops)
        # 3. broadcast inside the group
        first = 2 * hops + across
        for team in teams:
            yield from (Transfer(first + place - 1, team[0], team[place], *owned[place], False)
                        for place in range(1, self.group))
            yield from circulate([[span] for span in segments], team, first + hops, shift=1, adds=False)

    def _torus(self, teams: list[list[int]], segments: list[Span]) -> Iterator[Transfer]:
        hops = self.group - 1
        for team in teams:
            yield from circulate([[span] for span in segments], team, 0, shift=0, adds=True)
        for place in range(self.group):
            yield from whole_ring(segments[(place + 1) % self.group], [team[place] for team in teams], hops)
        for team in teams:
            yield from circulate([[span] for span in segments], team, hops + 2 * (len(teams) - 1), 1, adds=False)


def whole_ring(span: Span, ranks: list[int], first_round: int) -> Iterator[Transfer]:
    """Schedule a ring all-reduce of one span among `ranks`."""
    segments = [[part] for part in cut(span.size, len(ranks), span.start)]
    yield from circulate(segments, ranks, first_round, shift=0, adds=True)
    yield from circulate(segments, ranks, first_round + len(ranks) - 1, shift=1, adds=False)
