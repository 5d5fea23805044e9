"""An epoch of input on one rank: write the data, read an epoch, check that every sample came exactly once."""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from repro.core.errors import TrialError
from repro.core.random_streams import Streams
from repro.papers.in_memory.options import EpochInputOptions
from repro.seams.measurement import Check, Counted, Findings, Measuring, Post

BLOB = "blob"


@dataclass(frozen=True, slots=True)
class Samples:
    """A data set of numbered samples in a folder."""

    streams: Streams
    folder: Path
    lengths: NDArray[np.int64]
    """[n] bytes of each sample."""

    def content(self, number: int) -> NDArray[np.uint8]:
        """Return the bytes of a sample, drawn again."""
        draw = self.streams.generator("sample", number)
        return draw.integers(0, 256, int(self.lengths[number]), dtype=np.uint8)

    def file(self, number: int) -> Path:
        """Return the file of a sample; a folder has at most 1000 of them."""
        return self.folder / f"{number // 1000:04d}" / f"{number:07d}"

    def read_blob(self, first: int, end: int) -> NDArray[np.uint8]:
        """Read the samples from `first` up to `end` by one read."""
        start = int(self.lengths[:first].sum())
        found = np.empty(int(self.lengths[first:end].sum()), np.uint8)
        with (self.folder / BLOB).open("rb", buffering=0) as source:
            source.seek(start)
            view = memoryview(found)  # type: ignore[arg-type]  # numpy's stubs for Python 3.11 do not name the buffer
            done = 0
            while done < len(found):
                if not (count := source.readinto(view[done:])):
                    raise OSError(f"{source.name} ends before sample {end}")
                done += count
        return found


def bounds(samples: int, world: int) -> NDArray[np.int64]:
    """Return the first sample of each rank's part, and the end [world + 1]; parts differ by at most one."""
    return np.array([rank * samples // world for rank in range(world + 1)])


class InMemory:
    """The samples in this rank's slots. Every rank knows which sample lies in which slot of all ranks."""

    def __init__(self, samples: Samples, rank: int, world: int, chunk_bytes: int) -> None:
        self.samples, self.rank, self.world = samples, rank, world
        self.bounds = bounds(len(samples.lengths), world)
        self.slots = np.arange(len(samples.lengths))
        """Sample in each slot; slots `bounds[r]` up to `bounds[r + 1]` are rank r's."""
        self.chunk = max(1, int(chunk_bytes // max(1.0, samples.lengths.mean())))
        """Slots of each rank that one all-to-all fills."""
        self.sent_bytes = 0
        """To other ranks, by the last shuffle."""
        self._first, self._end = int(self.bounds[rank]), int(self.bounds[rank + 1])
        self._hold(samples.read_blob(self._first, self._end))

    @property
    def own(self) -> NDArray[np.int64]:
        """The samples that this rank holds, in the order of its slots."""
        return self.slots[self._first : self._end]

    def sample(self, place: int) -> NDArray[np.uint8]:
        """Return the bytes of the sample in the rank's slot `place`, counted from 0; a view."""
        return self.blob[self._offsets[place] : self._offsets[place + 1]]

    def shuffle(self, order: NDArray[np.int64]) -> None:
        """Move the sample of slot `order[s]` into slot s, for every slot of every rank.

        While it runs, a rank holds its old part, its new part and one chunk.

        Args:
            order: a permutation [n], the same on every rank.
        """
        new = self.slots[order]
        lengths = self.samples.lengths
        filled = np.empty(int(lengths[new[self._first : self._end]].sum()), np.uint8)
        offsets = np.concatenate([[0], np.cumsum(lengths[new[self._first : self._end]])])
        owner = np.searchsorted(self.bounds, order, side="right") - 1
        self.sent_bytes = 0
        largest = int(np.diff(self.bounds).max())
        for start in range(0, largest, self.chunk):
            self._exchange(order, owner, start, filled, offsets)
        self.slots = new
        self._hold(filled)

    def _exchange(
        self, order: NDArray[np.int64], owner: NDArray[np.int64], start: int, filled: NDArray[np.uint8],
        offsets: NDArray[np.int64],
    ) -> None:
        """Fill the slots `start` up to `start + chunk` of every rank by one all-to-all."""
        windows = [np.arange(min(first + start, end), min(first + start + self.chunk, end))
                   for first, end in zip(self.bounds[:-1], self.bounds[1:], strict=True)]
        leaving = [window[owner[window] == self.rank] for window in windows]
        parts = [self.sample(int(order[slot]) - self._first) for window in leaving for slot in window]
        sizes = [int(self.samples.lengths[self.slots[order[window]]].sum()) for window in leaving]
        outgoing = np.concatenate(parts) if parts else np.empty(0, np.uint8)
        mine = windows[self.rank]
        arriving = [mine[owner[mine] == rank] for rank in range(self.world)]
        expected = [int(self.samples.lengths[self.slots[order[slots]]].sum()) for slots in arriving]
        incoming = self._all_to_all(outgoing, sizes, expected)
        self.sent_bytes += sum(sizes) - sizes[self.rank]
        at = 0
        for slot in np.concatenate(arriving):
            place = int(slot) - self._first
            length = int(offsets[place + 1] - offsets[place])
            filled[offsets[place] : offsets[place + 1]] = incoming[at : at + length]
            at += length

    def _all_to_all(self, outgoing: NDArray[np.uint8], sizes: list[int], expected: list[int]) -> NDArray[np.uint8]:
        if self.world == 1:
            return outgoing
        incoming = torch.empty(sum(expected), dtype=torch.uint8)
        dist.all_to_all_single(incoming, torch.from_numpy(outgoing), expected, sizes)
        return incoming.numpy()

    def _hold(self, blob: NDArray[np.uint8]) -> None:
        self.blob = blob
        self._offsets = np.concatenate([[0], np.cumsum(self.samples.lengths[self.own])])


_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]


def evict(files: Sequence[Path]) -> None:
    """Drop the clean pages of files from the page cache.

    A page that another processor has just used stays at the first request, so it is repeated for a second. File systems
    in memory keep all pages; `resident_share` tells.
    """
    until, left = time.monotonic() + 1, list(files)
    while left and time.monotonic() < until:
        for file in left:
            handle = os.open(file, os.O_RDONLY)
            try:
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(handle)
        left = [file for file in left if resident_share([file])]


def resident_share(files: Iterable[Path]) -> float:
    """Return the share of the files' pages that are in the page cache, from 0 to 1 (mincore(2)).

    Raises:
        OSError: the kernel refuses.
    """
    found = pages = 0
    for file in files:
        with file.open("rb") as source, mmap.mmap(source.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            view = np.frombuffer(mapped, np.uint8)
            states = np.zeros(-(-len(view) // mmap.PAGESIZE), np.uint8)
            if _LIBC.mincore(view.ctypes.data, len(view), states.ctypes.data):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(file))
            found, pages = found + int((states & 1).sum()), pages + len(states)
            del view  # the map can be closed only without it
    return found / pages if pages else 0.0


COLD = 0.01
"""Largest share of the files' pages that a cold cache still holds, and that a warm one lacks."""


class Running(Measuring):
    """One rank. An operation is one epoch of its input: every sample's bytes are copied into batches."""

    def __init__(self, options: EpochInputOptions, post: Post) -> None:
        self.options, self.post = options, post
        self.epoch, self.resident, self.shuffled = 0, list[float](), list[float]()
        self.seen: list[NDArray[np.int64]] = []
        made = [tempfile.mkdtemp(prefix="repro-input-") if post.rank == 0 else ""]
        if post.world > 1:
            dist.broadcast_object_list(made, src=0)
        self.folder = Path(made[0])
        mean = options.sample_bytes  # lengths differ as those of compressed images
        lengths = post.streams.generator("lengths").integers(mean - mean // 2, mean + mean // 2 + 1, options.samples)
        self.samples = Samples(post.streams, self.folder, lengths)
        self.first, self.end = map(int, bounds(options.samples, post.world)[post.rank : post.rank + 2])
        self.batch = np.empty((options.batch, int(lengths.max())), np.uint8)
        try:
            self._write()
        except OSError as error:
            self.close()
            raise TrialError(f"{self.folder}: the samples cannot be written: {error.strerror}; set TMPDIR to a folder "
                             f"with {2 * int(lengths.sum()) >> 20} MiB") from error
        started = time.perf_counter()
        self.memory = InMemory(self.samples, post.rank, post.world, options.chunk_mib << 20) \
            if options.store == "memory" else None
        self.load_seconds = time.perf_counter() - started

    def _write(self) -> None:
        """Write the files of this rank's samples, or rank 0 all samples one after the other into one."""
        samples = self.samples
        if self.options.store == "files":
            for number in range(self.first, self.end):
                place = samples.file(number)
                place.parent.mkdir(exist_ok=True)
                place.write_bytes(samples.content(number).tobytes())
        elif self.post.rank == 0:
            with (samples.folder / BLOB).open("wb") as out:
                for number in range(self.options.samples):
                    out.write(samples.content(number).tobytes())
        os.sync()  # only pages that are on the disk can be evicted
        if self.post.world > 1:
            dist.barrier()

    # ---- operations

    def prepare(self) -> None:
        """Draw the order of the next epoch; evict the files, or read them once, and note what is in the page cache."""
        self.order = self.post.streams.generator("order", self.epoch).permutation(self.options.samples)
        if self.options.store == "files":
            files = [self.samples.file(int(number)) for number in self._part()]
            if self.options.cache == "cold":
                evict(files)
            else:
                for file in files:
                    file.read_bytes()
            self.resident.append(resident_share(files))

    def operate(self) -> None:
        if self.memory is None:
            part = self._part()
            for place, number in enumerate(part):
                self._take(place, np.frombuffer(self.samples.file(int(number)).read_bytes(), np.uint8))
            self.seen.append(part)
        else:
            self._from_memory(self.memory)
        self.epoch += 1

    def _from_memory(self, memory: InMemory) -> None:
        if self.options.shuffle_every and self.epoch % self.options.shuffle_every == 0:
            started = time.perf_counter()
            memory.shuffle(self.order)
            self.shuffled.append(time.perf_counter() - started)
        places = np.argsort(self.order[self.first : self.end])
        for place, slot in enumerate(places):
            self._take(place, memory.sample(int(slot)))
        self.seen.append(memory.own[places])

    def _part(self) -> NDArray[np.int64]:
        """Return the samples whose files this rank reads in the next epoch, in their order."""
        return self.order[self.first : self.end]

    def _take(self, place: int, content: NDArray[np.uint8]) -> None:
        self.batch[place % len(self.batch), : len(content)] = content

    # ---- what was found

    def finish(self, counted: Counted) -> Findings:
        figures = {"held_bytes": float(self.memory.blob.nbytes if self.memory else 0)}
        checks = [Check("samples that did not come exactly once in an epoch", float(self._not_once())),
                  Check("samples whose bytes are not those that were drawn", float(self._wrong()))]
        if self.memory is None:
            resident = self.resident[-counted.operations :]
            cold = self.options.cache == "cold"
            figures["resident_before"] = max(resident) if cold else min(resident)
            far = max(resident) if cold else 1 - min(resident)
            checks.append(Check("page cache before an epoch is not as asked", far, COLD))
        else:
            figures |= {"load_seconds": self.load_seconds, "shuffle_bytes": float(self.memory.sent_bytes),
                        "shuffle_seconds": float(np.median(self.shuffled)) if self.shuffled else 0.0}
        if self.post.world > 1:
            dist.barrier()  # rank 0 removes the files when it closes
        return Findings(tuple(checks), figures)

    def _not_once(self) -> int:
        """Return the most samples of an epoch that came never or more than once over all ranks."""
        worst = 0
        for seen in self.seen:
            parts = [seen]
            if self.post.world > 1:
                parts = [seen] * self.post.world
                dist.all_gather_object(parts, seen)
            counts = np.bincount(np.concatenate(parts), minlength=self.options.samples)
            worst = max(worst, int((counts != 1).sum()))
        return worst

    def _wrong(self) -> int:
        """Return how many samples of the last epoch on this rank have other bytes than were drawn."""
        if self.memory is None:
            found = ((int(number), self.samples.file(int(number)).read_bytes()) for number in self.seen[-1])
        else:
            found = ((int(number), self.memory.sample(place).tobytes())
                     for place, number in enumerate(self.memory.own))
        return sum(content != self.samples.content(number).tobytes() for number, content in found)

    def effective(self) -> dict[str, str]:
        return {"input_store": "files" if self.memory is None else "memory",
                "input_samples": str(len(self.samples.lengths)), "input_bytes": str(int(self.samples.lengths.sum()))}

    def close(self) -> None:
        if self.post.rank == 0:
            shutil.rmtree(self.folder, ignore_errors=True)
