"""Reduction trees (one, or several with disjoint inner ranks) and the star of a parameter server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import Field

from repro.comm.algorithm import Algorithm, Operation, per_chunk
from repro.comm.schedule import Span, Transfer, chunks, cut
from repro.seams.plugin import Setting


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


@dataclass(frozen=True, slots=True)
class Tree:
    """Parent of every rank except the root, and the round in which a rank sends to it."""

    parents: tuple[int | None, ...]
    wave: tuple[int, ...]
    """Round, counted from the start of a chunk, in which a rank sends it up; a parent sends later than its children."""

    @property
    def depth(self) -> int:
        """Rounds until a chunk reaches the root."""
        return 1 + max((at for at, parent in zip(self.wave, self.parents, strict=True) if parent is not None),
                       default=-1)


def heap_tree(world: int, arity: int, root: int) -> Tree:
    """Build the k-ary heap over r' = (r - root) mod p: the children of r' are k r' + 1 .. k r' + k."""
    depths = [0] * world
    for place in range(1, world):
        depths[place] = depths[(place - 1) // arity] + 1
    deepest = max(depths)
    places = [(rank - root) % world for rank in range(world)]
    parents = tuple(((place - 1) // arity + root) % world if place else None for place in places)
    return Tree(parents, tuple(deepest - depths[place] for place in places))


def binomial_tree(world: int, root: int) -> Tree:
    """Build the binomial tree: the parent of r' is r' without its lowest set bit; ranks whose lowest bit is j send in
    round j.
    """
    places = [(rank - root) % world for rank in range(world)]
    parents = tuple(((place & (place - 1)) + root) % world if place else None for place in places)
    return Tree(parents, tuple((place & -place).bit_length() - 1 if place else world.bit_length() for place in places))


def up(tree: Tree, pieces: Sequence[Span]) -> Iterator[Transfer]:
    """Send every chunk to the root, adding on the way; each chunk starts one round after the one before it."""
    for index, piece in enumerate(pieces):
        for rank, parent in enumerate(tree.parents):
            if parent is not None:
                yield Transfer(index + tree.wave[rank], rank, parent, *piece, True)


def down(tree: Tree, pieces: Sequence[Span], first_round: int) -> Iterator[Transfer]:
    """Send every chunk from the root to all ranks, in reverse order of the way up."""
    for index, piece in enumerate(pieces):
        for rank, parent in enumerate(tree.parents):
            if parent is not None:
                yield Transfer(first_round + index + tree.depth - 1 - tree.wave[rank], parent, rank, *piece, False)


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
