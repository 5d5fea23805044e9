"""Samples of different lengths, drawn once, and how they lie on the disk: a file each, and one blob with an index."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from repro.core.random_streams import Streams

BLOB = "blob"


@dataclass(frozen=True, slots=True)
class Samples:
    """A data set of numbered samples in a folder."""

    streams: Streams
    folder: Path
    lengths: NDArray[np.int64]
    """[n] bytes of each sample."""

    @property
    def offsets(self) -> NDArray[np.int64]:
        """First byte of each sample in the blob, and its end [n + 1]."""
        return np.concatenate([[0], np.cumsum(self.lengths)])

    def content(self, number: int) -> NDArray[np.uint8]:
        """Return the bytes of a sample, drawn again."""
        draw = self.streams.generator("sample", number)
        return draw.integers(0, 256, int(self.lengths[number]), dtype=np.uint8)

    def file(self, number: int) -> Path:
        """Return the file of a sample; a folder has at most 1000 of them."""
        return self.folder / f"{number // 1000:04d}" / f"{number:07d}"

    def write_files(self, first: int, end: int) -> None:
        """Write the files of the samples from `first` up to `end`."""
        for number in range(first, end):
            place = self.file(number)
            place.parent.mkdir(exist_ok=True)
            place.write_bytes(self.content(number).tobytes())

    def write_blob(self) -> None:
        """Write all samples one after the other into one file."""
        with (self.folder / BLOB).open("wb") as out:
            for number in range(len(self.lengths)):
                out.write(self.content(number).tobytes())

    def read_blob(self, first: int, end: int) -> NDArray[np.uint8]:
        """Read the samples from `first` up to `end` by one read."""
        offsets = self.offsets
        start, stop = int(offsets[first]), int(offsets[end])
        found = np.empty(stop - start, np.uint8)
        with (self.folder / BLOB).open("rb", buffering=0) as source:
            source.seek(start)
            view = memoryview(found)  # type: ignore[arg-type]  # numpy's stubs for Python 3.11 do not name the buffer
            done = 0
            while done < len(found):
                if not (count := source.readinto(view[done:])):
                    raise OSError(f"{source.name} ends before sample {end}")
                done += count
        return found


def drawn_lengths(streams: Streams, samples: int, mean: int) -> NDArray[np.int64]:
    """Return lengths [samples] from half of `mean` to one and a half, as those of compressed images differ."""
    return streams.generator("lengths").integers(mean - mean // 2, mean + mean // 2 + 1, samples)


def bounds(samples: int, world: int) -> NDArray[np.int64]:
    """Return the first sample of each rank's part, and the end [world + 1]; parts differ by at most one."""
    return np.array([rank * samples // world for rank in range(world + 1)])


def write_through() -> None:
    """Write all dirty pages to the disk: only clean ones can be evicted."""
    os.sync()
