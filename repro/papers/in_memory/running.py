"""An epoch of input on one rank: write the data, read an epoch, check that every sample came exactly once."""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray

from repro.core.errors import TrialError
from repro.papers.in_memory.memory import InMemory
from repro.papers.in_memory.options import EpochInputOptions
from repro.papers.in_memory.samples import Samples, bounds, drawn_lengths, write_through
from repro.seams.measurement import Check, Counted, Findings, Measuring, Post

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
"""Largest share of the files' pages that a cold cache still holds."""


class Running(Measuring):
    """One rank. An operation is one epoch of its input: every sample's bytes are copied into batches."""

    def __init__(self, options: EpochInputOptions, post: Post) -> None:
        self.options, self.post = options, post
        self.epoch, self.resident, self.shuffled = 0, list[float](), list[float]()
        self.seen: list[NDArray[np.int64]] = []
        self.folder = Path(self._same(tempfile.mkdtemp(prefix="repro-input-") if post.rank == 0 else ""))
        lengths = drawn_lengths(post.streams, options.samples, options.sample_bytes)
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

    def _same(self, value: str) -> str:
        """Return rank 0's value."""
        if self.post.world == 1:
            return value
        found = [value]
        dist.broadcast_object_list(found, src=0)
        return found[0]

    def _write(self) -> None:
        if self.options.store == "files":
            self.samples.write_files(self.first, self.end)
        elif self.post.rank == 0:
            self.samples.write_blob()
        write_through()
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
        figures = {"held_bytes": float(self.memory.held_bytes if self.memory else 0)}
        checks = [Check("samples that did not come exactly once in an epoch", float(self._not_once())),
                  Check("samples whose bytes are not those that were drawn", float(self._wrong()))]
        if self.memory is None:
            resident = self.resident[-counted.operations :]
            figures["resident_before"] = max(resident) if self.options.cache == "cold" else min(resident)
            limit, far = (COLD, max(resident)) if self.options.cache == "cold" else (COLD, 1 - min(resident))
            checks.append(Check("page cache before an epoch is not as asked", far, limit))
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
