"""Reduction trees, and pipelined schedules up and down a tree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from repro.comm.schedule import Span, Transfer


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

    def degrees(self) -> list[int]:
        """Return the number of links of every rank: its children and its parent."""
        found = [int(parent is not None) for parent in self.parents]
        for parent in self.parents:
            if parent is not None:
                found[parent] += 1
        return found

    def internal(self) -> set[int]:
        """Return the ranks that have children."""
        return {parent for parent in self.parents if parent is not None}


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
