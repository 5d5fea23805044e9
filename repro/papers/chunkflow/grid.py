"""The grid of overlapping chunks over a 3-D volume, and the blocks of the output that chunks blend into."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path

from repro.core.errors import UsageError

Triple = tuple[int, int, int]
Box = tuple[slice, slice, slice]
AXES = ("first", "second", "third")


def shown(sizes: Triple) -> str:
    """Return sizes as `64x64x32`."""
    return "x".join(map(str, sizes))


def why_no_grid(shape: Triple, chunk: Triple, overlap: Triple) -> str:
    """Return why chunks of this size and overlap do not cover the volume, in one sentence; "" if they do."""
    for axis, size, length, common in zip(AXES, shape, chunk, overlap, strict=True):
        if length < 1 or common < 0:
            return f"chunk {length} and overlap {common} on the {axis} axis; use at least 1 and 0"
        if length > size:
            return f"chunk {shown(chunk)} is larger than the volume {shown(shape)} on the {axis} axis; use at most " \
                   f"{size} there"
        if 2 * common > length:
            return f"overlap {common} is over half of chunk {length} on the {axis} axis; use at most {length // 2} " \
                   "there"
    return ""


@dataclass(frozen=True, slots=True)
class Grid:
    """Chunks of one size in C order. A chunk starts where the one before it ends, less the overlap; the last one of an
    axis is shifted back so that it ends with the volume. All sizes are in voxels.

    Blocks divide the volume without overlap, at multiples of chunk less overlap.

    Raises:
        UsageError: a chunk is larger than the volume, or an overlap larger than half a chunk.
    """

    shape: Triple
    chunk: Triple
    overlap: Triple

    def __post_init__(self) -> None:
        if problem := why_no_grid(self.shape, self.chunk, self.overlap):
            raise UsageError(problem)

    @property
    def stride(self) -> Triple:
        """Distance from one chunk to the next; also the size of a block."""
        first, second, third = (length - common for length, common in zip(self.chunk, self.overlap, strict=True))
        return first, second, third

    def starts(self, axis: int) -> list[int]:
        """Return the first voxel of every chunk on an axis."""
        last = self.shape[axis] - self.chunk[axis]
        return [*range(0, last, self.stride[axis]), last]

    @property
    def counts(self) -> Triple:
        """Chunks on each axis."""
        return len(self.starts(0)), len(self.starts(1)), len(self.starts(2))

    @property
    def chunks(self) -> int:
        return prod(self.counts)

    @property
    def blocks(self) -> Triple:
        """Blocks on each axis."""
        first, second, third = (-(-size // step) for size, step in zip(self.shape, self.stride, strict=True))
        return first, second, third

    def place(self, index: int) -> Triple:
        """Return the place of a chunk on each axis."""
        _, second, third = self.counts
        return index // (second * third), index // third % second, index % third

    def box(self, index: int) -> Box:
        """Return the voxels of a chunk."""
        first, second, third = (
            slice(start := self.starts(axis)[place], start + self.chunk[axis])
            for axis, place in enumerate(self.place(index)))
        return first, second, third

    def block_box(self, block: Triple) -> Box:
        """Return the voxels of a block."""
        first, second, third = (slice(place * step, min((place + 1) * step, size))
                                for place, step, size in zip(block, self.stride, self.shape, strict=True))
        return first, second, third

    def blocks_of(self, index: int) -> list[Triple]:
        """Return the blocks that a chunk reaches into."""
        ranges = [range(part.start // step, -(-part.stop // step))
                  for part, step in zip(self.box(index), self.stride, strict=True)]
        return [(first, second, third) for first, second, third in product(*ranges)]

    def chunks_of(self, block: Triple) -> list[int]:
        """Return the chunks that reach into a block, in order."""
        reaching = []
        for axis, part in enumerate(self.block_box(block)):
            reaching.append([place for place, start in enumerate(self.starts(axis))
                             if start < part.stop and part.start < start + self.chunk[axis]])
        _, second, third = self.counts
        return [(a * second + b) * third + c for a, b, c in product(*reaching)]


PART_BYTES = 8
"""Of a voxel of a weighted chunk; compression usually saves some."""


def why_no_room(place: Path, folder: Path, grid: Grid, itemsize: int) -> str:
    """Return that `folder` has less room than the output `place` may take, in one sentence; "" if it has enough."""
    needed = grid.chunks * prod(grid.chunk) * PART_BYTES + prod(grid.shape) * itemsize
    if (free := shutil.disk_usage(folder).free) >= needed:
        return ""
    return f"{place}: may take {needed / 1e6:,.1f} MB, and {free / 1e6:,.1f} MB are free there; make room or name " \
           "another place"
