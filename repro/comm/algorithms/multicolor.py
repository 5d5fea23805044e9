"""Multi-colour all-reduce: several trees at once, so that no rank is an inner rank of more than one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from pydantic import Field

from repro.comm.algorithm import Algorithm, Operation, per_chunk
from repro.comm.algorithms.tree import Tree, down, heap_tree, up
from repro.comm.schedule import Busiest, Transfer, chunks, cut
from repro.seams.plugin import Setting


class Multicolor(Algorithm):
    """c pipelined k-ary trees, each for its own part of the buffer, with disjoint inner ranks.

    Source: Kumar et al. (IBM), "Efficient training of convolutional neural nets on large distributed systems",
    arXiv:1711.00705, section on multi-color all-reduce. The paper does not print the construction; ours:

    1. The buffer is cut into c parts ("colours").
    2. Colour i has the heap k-ary tree over r' = (r - i floor(p/c)) mod p. Inner ranks of two colours are disjoint
       when c ceil((p-1)/k) <= p; more colours are refused.
    3. Each colour is reduced up and sent down its tree in chunks, all colours at the same time.

    The busiest rank sends about (k + c) S / c instead of a single tree's (k + 1) S.
    """

    title: ClassVar[str] = "multi-colour trees"
    own: ClassVar[tuple[Operation, ...]] = ("all_reduce",)
    always_shown: ClassVar[tuple[str, ...]] = ("colors", "arity")

    colors: int = Field(4, ge=1, description="trees, and parts of the buffer")
    arity: int = Field(4, ge=1, le=64, description="children of an inner rank")
    chunk_kib: float = Field(256.0, gt=0, description="KiB of a colour sent at a time")

    def unsupported(self, setting: Setting) -> str | None:
        most = self.most_colors(setting.processes)
        if setting.processes > 1 and self.colors > most:
            return (f"{self.colors} colours of arity {self.arity} on {setting.processes} ranks share inner ranks; "
                    f"the construction allows {most}")
        return super().unsupported(setting)

    def most_colors(self, world: int) -> int:
        """Return the largest c with c ceil((p-1)/k) <= p."""
        return world // max(1, -(-(world - 1) // self.arity))

    def trees(self, world: int) -> list[Tree]:
        """Return one tree per colour; fewer in a smaller group made inside a trial, as many as its size allows."""
        colors = min(self.colors, self.most_colors(world))
        # 2. rotated by floor(p / c) a colour
        return [heap_tree(world, self.arity, root=color * (world // colors)) for color in range(colors)]

    def all_reduce(self, world: int, count: int, itemsize: int) -> Iterator[Transfer]:
        trees = self.trees(world)
        # 1. one part per colour
        for tree, part in zip(trees, cut(count, len(trees)), strict=True):
            # 3. up and down
            pieces = chunks(part, per_chunk(self.chunk_kib, itemsize))
            yield from up(tree, pieces)
            yield from down(tree, pieces, first_round=tree.depth)

    def busiest(self, world: int, count: int, itemsize: int) -> Busiest:
        """Sum over colours the part's bytes times the rank's links in that colour's tree."""
        trees = self.trees(world)
        degrees = [tree.degrees() for tree in trees]
        sizes = [part.size for part in cut(count, len(trees))]
        most = max(sum(degree[rank] * size for degree, size in zip(degrees, sizes, strict=True))
                   for rank in range(world))
        return Busiest(most * itemsize, most * itemsize)
