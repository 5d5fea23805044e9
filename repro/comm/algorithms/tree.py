"""Reduction tree: up to the root and down again, in one piece (FireCaffe) or pipelined by chunk."""

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

    1. The buffer is cut in chunks (`chunk_kib: null`: it is one chunk, as in FireCaffe).
    2. Up: every rank adds its children's chunk to its own and sends the sum to its parent, chunk after chunk.
    3. Down: the root's finished chunk goes back the same way, while later chunks still go up.

    In one piece a binomial tree takes 2 ceil(log2 p) rounds and path 2 ceil(log2 p) x S, a k-ary one 2 D rounds of k S
    each (D levels). Pipelined, the path tends to the busiest rank's (k + 1) S, whatever p.
    """

    title: ClassVar[str] = "tree"
    own: ClassVar[tuple[Operation, ...]] = ("all_reduce", "broadcast")
    always_shown: ClassVar[tuple[str, ...]] = ("shape",)

    shape: Literal["heap", "binomial"] = Field("heap", description="k-ary heap, or the binomial tree of FireCaffe")
    arity: int = Field(2, ge=1, le=64, description="children of a rank in the heap")
    chunk_kib: float | None = Field(256.0, gt=0, description="KiB sent at a time; null: everything at once")

    def tree(self, world: int, root: int) -> Tree:
        """Who reports to whom."""
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
        """Everything once to and once from each of a rank's links: its children and its parent."""
        size = max(self.tree(world, root=0).degrees()) * count * itemsize
        return Busiest(size, size)
