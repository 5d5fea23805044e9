"""Reduction tree: reduce up to the root and broadcast down, in one piece (FireCaffe) or pipelined by chunk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from repro.comm.algorithm import Algorithm, Operation, per_chunk
from repro.comm.algorithms.trees import Tree, binomial_tree, down, heap_tree, up
from repro.comm.schedule import Busiest, Span, Transfer, chunks


class ReductionTree(Algorithm):
    """Tree all-reduce and broadcast.

    Source: Iandola, Ashraf, Moskewicz and Keutzer, "FireCaffe", CVPR 2016, section 4 (reduction trees against a
    parameter server); chunks as in Sanders, Speck and Träff, 2009.

    1. The buffer is cut into chunks (`chunk_kib: null`: one chunk, as in FireCaffe).
    2. Up: every rank adds its children's chunk to its own and sends the sum to its parent, chunk after chunk.
    3. Down: the root's finished chunk is sent back the same way while later chunks still go up.

    In one piece a binomial tree takes 2 ceil(log2 p) rounds and path 2 ceil(log2 p) x S, a k-ary one 2 D rounds of k S
    each (D levels). Pipelined, the path tends to the (k + 1) S of the busiest rank for any p.
    """

    title: ClassVar[str] = "tree"
    own: ClassVar[tuple[Operation, ...]] = ("all_reduce", "broadcast")
    always_shown: ClassVar[tuple[str, ...]] = ("shape",)

    shape: Literal["heap", "binomial"] = Field("heap", description="k-ary heap, or the binomial tree of FireCaffe")
    arity: int = Field(2, ge=1, le=64, description="children of a rank in the heap")
    chunk_kib: float | None = Field(256.0, gt=0, description="KiB sent at a time; null: the whole buffer at once")

    def tree(self, world: int, root: int) -> Tree:
        """Return the parent of every rank."""
        return binomial_tree(world, root) if self.shape == "binomial" else heap_tree(world, self.arity, root)

    def all_reduce(self, world: int, count: int, itemsize: int) -> Iterator[Transfer]:
        tree = self.tree(world, root=0)
        # 1. chunks
        pieces = chunks(Span(0, count), per_chunk(self.chunk_kib, itemsize))
        # 2. up
        yield from up(tree, pieces)
        # 3. down, `depth` rounds behind
        yield from down(tree, pieces, first_round=tree.depth)

    def broadcast(self, world: int, count: int, itemsize: int, root: int) -> Iterator[Transfer]:
        pieces = chunks(Span(0, count), per_chunk(self.chunk_kib, itemsize))
        return down(self.tree(world, root), pieces, first_round=0)

    def busiest(self, world: int, count: int, itemsize: int) -> Busiest:
        """Return S times the most links of one rank (its children and its parent): it sends and receives S on each."""
        size = max(self.tree(world, root=0).degrees()) * count * itemsize
        return Busiest(size, size)
