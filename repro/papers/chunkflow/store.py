"""Volumes in Zarr: the input, and an output that any number of workers may write again and again.

An output is a folder with three arrays:

- `parts`: the weighted chunks as float64, each in one file of its own, which one task writes;
- `done`: 1 for every part that is complete;
- `volume`: the result, one file a block. A block is the sum, in the order of the grid, of the parts that reach into it.

A worker that has written a part writes every block that has all its parts by then. Of the workers whose parts meet in a
block the last one finds them all, so every block is written before the last of their tasks is deleted. Parts and blocks
are functions of the input alone, and a file is replaced as a whole. So a task that is repeated, by one worker after
another or by two at once, writes the same bytes again: nothing is added to what is there.
"""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from repro.core.errors import OutputError, UsageError
from repro.papers.chunkflow.grid import Grid, Triple, why_no_room
from repro.papers.extra import imported

zarr = imported("zarr", "zarr")
# Older versions unpickle the parts of a volume whose description asks for it.
imported("numcodecs", "numcodecs.registry").codec_registry.pop("pickle", None)
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def open_volume(path: str | os.PathLike[str]) -> Any:
    """Open a Zarr array of three dimensions for reading.

    Raises:
        UsageError: there is none at `path`, or it has other dimensions.
    """
    try:
        found: Any = zarr.open_array(os.fspath(path), mode="r")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path}: is no readable Zarr array ({type(error).__name__}); write one with zarr.save_array"
                         ) from error
    if found.dtype.kind in "ui" and found.dtype.itemsize > 4:
        raise UsageError(f"{path}: is of {found.dtype}, whose numbers the blending in float64 cannot hold exactly; "
                         "convert it to 32 bits or to floats")
    if found.ndim != 3 or found.dtype.kind not in "uif":
        raise UsageError(f"{path}: has {found.ndim} dimensions of type {found.dtype}; a volume has 3, of numbers")
    return found


class Output:
    """The output of a grid of chunks, as one worker sees it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open what `create` made.

        Raises:
            UsageError: there is no output at `path`.
        """
        self.path = Path(path)
        try:
            self.parts, self.done, self.volume = (
                zarr.open_array(str(self.path / name), mode="r+") for name in ("parts", "done", "volume"))
            self.grid = Grid(self.volume.shape, tuple(self.volume.attrs["chunk"]), tuple(self.volume.attrs["overlap"]))
            self.name = str(self.volume.attrs["name"])
            """Random; in every task, so that no worker does those of another output."""
        except (OSError, ValueError, KeyError) as error:
            raise UsageError(f"{self.path}: is no output of repro volume create-tasks ({type(error).__name__})"
                             ) from error
        self._known: set[int] = set()
        """Parts that this worker has seen complete; they stay so."""

    @classmethod
    def create(cls, path: str | os.PathLike[str], grid: Grid, dtype: str) -> Output:
        """Make an empty output.

        Raises:
            OutputError: something is at `path`, or the disk has less room than parts and volume may take.
        """
        place = Path(path)
        if place.exists():
            raise OutputError(f"{place}: exists; remove it or name another output")
        parent = place.absolute().parent
        if not parent.is_dir():
            raise OutputError(f"{place}: folder {parent} does not exist")
        if problem := why_no_room(place, parent, grid, np.dtype(dtype).itemsize):
            raise OutputError(problem)
        with _written(place):
            for name, shape, chunks, kind in (
                    ("parts", (grid.chunks, *grid.chunk), (1, *grid.chunk), "float64"),
                    ("done", (grid.chunks,), (1,), "uint8"), ("volume", grid.shape, grid.stride, dtype)):
                made: Any = zarr.open_array(str(place / name), mode="w", shape=shape, chunks=chunks, dtype=kind,
                                            fill_value=0)
            made.attrs.update({"chunk": list(grid.chunk), "overlap": list(grid.overlap), "name": uuid.uuid4().hex})
        return cls(place)

    def tasks(self) -> list[str]:
        """Return the task of every chunk."""
        return [f"{self.name}/{index}" for index in range(self.grid.chunks)]

    def chunk_of(self, task: str) -> int:
        """Return the chunk of one of the output's tasks.

        Raises:
            UsageError: the task is for another output.
        """
        name, _, index = task.partition("/")
        if name != self.name:
            raise UsageError(f"{self.path}: the tasks of this queue are for another output; name the one that "
                             "create-tasks made with them")
        if not index.isdecimal() or len(index) > 18 or int(index) >= self.grid.chunks:
            raise UsageError(f"{self.path}: the queue has a task that create-tasks did not make: {task[:80]!r}")
        return int(index)

    def write(self, index: int, part: np.ndarray) -> None:
        """Write the weighted chunk `index` (float64) and every block that is complete with it.

        Raises:
            OutputError: it cannot be written, for example because the disk is full.
        """
        with _written(self.path):
            self.parts[index] = part
            self.done[index] = 1  # after the part: a worker that reads 1 finds the part complete
            self._known.add(index)
            for block in self.grid.blocks_of(index):
                reaching = self.grid.chunks_of(block)
                if all(map(self._is_done, reaching)):
                    self.volume[self.grid.block_box(block)] = self._blended(block, reaching)

    def left(self) -> int:
        """Return the number of chunks that are not done."""
        return self.grid.chunks - int(np.count_nonzero(self.done[:]))

    def _is_done(self, index: int) -> bool:
        if index not in self._known and self.done[index] == 1:
            self._known.add(index)
        return index in self._known

    def _blended(self, block: Triple, reaching: list[int]) -> np.ndarray:
        """Return the sum of the parts of a block, in the type of the volume."""
        box = self.grid.block_box(block)
        total = np.zeros([part.stop - part.start for part in box])
        for index in reaching:
            common = [slice(max(mine.start, theirs.start), min(mine.stop, theirs.stop))
                      for mine, theirs in zip(box, self.grid.box(index), strict=True)]
            here = tuple(slice(part.start - mine.start, part.stop - mine.start)
                         for part, mine in zip(common, box, strict=True))
            there = tuple(slice(part.start - theirs.start, part.stop - theirs.start)
                          for part, theirs in zip(common, self.grid.box(index), strict=True))
            total[here] += self.parts[(index, *there)]
        return _as_type(total, self.volume.dtype)


def _as_type(values: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Return values in another type: integers rounded to the nearest and clipped, never wrapped around."""
    if dtype.kind == "f":
        return values.astype(dtype)
    limits = np.iinfo(dtype)
    clipped: np.ndarray = np.clip(np.rint(values), limits.min, limits.max).astype(dtype)
    return clipped


@contextmanager
def _written(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        then = "; make room: unfinished tasks stay in the queue" if error.errno in NO_SPACE else ""
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}{then}") from error
